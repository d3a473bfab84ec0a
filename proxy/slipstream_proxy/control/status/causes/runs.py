"""Causes that lie in runs, and in the groups that they make."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.contract import FunnelLine
from slipstream_proxy.control.status.causes.surroundings import BLOCKS, REMARK, RIGHT_JUDGE, SLOWS, SOON_S, Surroundings
from slipstream_proxy.store.read.status import FunnelCounts
from slipstream_proxy.store.read.wording import plural, span

LOST_GROUP_TEXTS = {
    ("stale", "unknown"): (
        "they were sampled too many versions ago",
        "raise trainer.max_staleness, or raise trainer.min_groups so that versions come more slowly",
    ),
    ("stale", "judge"): (
        "too many versions went live while they waited for the judge",
        "raise judge.concurrency, choose a faster judge.model, or raise trainer.max_staleness",
    ),
    ("stale", "reward"): (
        "too many versions went live while they waited for a reward",
        "post rewards sooner, or raise trainer.max_staleness",
    ),
    ("stale", "forming"): (
        "too many versions went live while they waited for more episodes of their task",
        "run the same task more often at a time, set groups.size lower, or raise trainer.max_staleness",
    ),
    ("stale", "trainer"): (
        "too many versions went live while they waited for the trainer",
        "raise trainer.max_groups, or raise trainer.max_staleness",
    ),
    ("dropped", "unknown"): (
        "their adapter was rolled back, or their episodes were deleted",
        "nothing to do: what a bad adapter sampled must not train the next one",
    ),
    ("dropped", "rolled_back"): (
        "the adapter that sampled them was taken back",
        "nothing to do: what a bad adapter sampled must not train the next one",
    ),
    ("dropped", "deleted"): ("their episodes were deleted", "nothing to do"),
    ("dropped", "nothing_trainable"): (
        "no call in them can be trained on",
        "see the reasons of untrainable calls, and change what the agent sends",
    ),
}
"""(state, cause) → why, and what to do."""


def episode_lines(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    if counts.open_episodes and not 0 < counts.recent.calls <= counts.recent.failed:  # else their end helps nobody
        text = f"{plural(counts.open_episodes, 'episode is', 'episodes are')} still open"
        if counts.next_end is not None:
            text += f"; without another call the next one ends in {span(max(0.0, counts.next_end - around.now))}"
        fix = "post the final reward, or send x-slipstream-done with the last call, and it ends at once"
        done = counts.outcomes or counts.forming.groups or counts.evaluating.groups or counts.missing or counts.ready
        soon = counts.next_end is not None and counts.next_end - around.now <= SOON_S
        busy = counts.longest_idle is not None and around.now - counts.longest_idle <= SOON_S
        severity, count = REMARK if done or soon or busy else SLOWS, counts.open_episodes
        yield FunnelLine(stage="episodes", cause="open", count=count, text=text, fix=fix, severity=severity)
    if counts.without_task:
        text = f"{plural(counts.without_task, 'episode has', 'episodes have')} no task, so nothing compares them"
        fix = "send x-slipstream-task, or set groups.ungrouped = true"
        count, stuck = counts.without_task, counts.without_task >= counts.train_episodes
        severity = BLOCKS if stuck else SLOWS
        yield FunnelLine(stage="episodes", cause="no_task", count=count, text=text, fix=fix, severity=severity)
    if counts.lone:
        text = f"the latest untagged runs have one call each, and {counts.lone} of them go on with what was said before"
        fix = (
            "something before the conversation changes with each call, such as a clock in the system prompt: send "
            "x-slipstream-episode, or start the agent with `slipstream connect NAME --run` (docs, Coding agents)"
        )
        yield FunnelLine(stage="episodes", cause="lone", count=counts.lone, text=text, fix=fix, severity=SLOWS)
    if counts.trained_calls and not counts.train_episodes:
        text = "all episodes are evaluation episodes (split = eval): they measure and never train"
        fix = "leave x-slipstream-split out for the runs to learn from"
        yield FunnelLine(stage="episodes", cause="all_eval", count=counts.calls, text=text, fix=fix, severity=BLOCKS)


def group_lines(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    size, max_age = around.config.groups.size, around.config.groups.max_age
    if forming := counts.forming.groups:
        text = (
            f"{plural(forming, 'group is', 'groups are')} forming with "
            f"{plural(counts.forming.episodes, 'episode', 'episodes')}: {size} episodes of one task make a group"
        )
        fix = (
            f"run each task {size} times, or set groups.size lower; two episodes are enough after "
            f"groups.max_age ({span(max_age)})"
        )
        done = counts.ready or counts.leased or counts.missing or counts.outcomes
        alone = forming >= size and counts.forming.episodes == forming
        if alone:
            text += ", and no task has come twice"
        severity = REMARK if done or not alone else BLOCKS
        yield FunnelLine(stage="groups", cause="forming", count=forming, text=text, fix=fix, severity=severity)
    if evaluating := counts.evaluating.groups:
        groups = plural(evaluating, "evaluation group forms", "evaluation groups form")
        text = f"{groups} with {plural(counts.evaluating.episodes, 'episode', 'episodes')}: never trained on"
        yield FunnelLine(stage="groups", cause="evaluation", count=evaluating, text=text)


def lost_group_lines(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    for (state, cause), count in sorted(counts.lost.items()):
        why, fix = LOST_GROUP_TEXTS.get((state, cause)) or LOST_GROUP_TEXTS[state, "unknown"]
        if cause == "judge" and "lost" in counts.failures:
            why, fix = f"{why}, which failed: {counts.failures['lost']}", RIGHT_JUDGE
        fix += "; `slipstream train --from-store` trains on them all the same" if state == "stale" else ""
        text = f"{plural(count, 'group was', 'groups were')} lost: {why}"
        severity = REMARK if fix.startswith("nothing") else SLOWS
        yield FunnelLine(
            stage="lost", cause=f"{state}_{cause}"[:80], count=count, text=text, fix=fix, severity=severity
        )
