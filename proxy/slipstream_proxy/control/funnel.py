"""Why is there no step yet? Every stage from a call to a live adapter, in one object.

``slipstream status``, ``slipstream doctor``, the page and the metric ``slipstream_funnel`` all show what ``funnel_of``
returns, so they use the same words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from slipstream.config import Config
from slipstream.contract import Adapter, Funnel, FunnelLine, GateReport
from slipstream_proxy.control.adapter_outage import AdapterOutage
from slipstream_proxy.control.funnel_engines import engine_lines
from slipstream_proxy.control.funnel_fixes import LOST, fix_untrainable
from slipstream_proxy.control.funnel_rewards import flat_lines, reward_lines, unweighted_lines
from slipstream_proxy.store.counts import plural, span
from slipstream_proxy.store.funnel import RATE_SECONDS, FunnelCounts

ENGINE_GAP = 0.05
"""Nats a token. bf16 beside float32 is 0.001 to 0.02; an engine whose graphs were wrong had 0.1 to 0.6."""
SOON = 60.0
"""Seconds: what ends by itself within them needs nobody."""


@dataclass(slots=True)
class Surroundings:
    """What the funnel needs beside the store's numbers."""

    config: Config
    now: float
    engines: list[tuple[str, bool, str | None]] = field(default_factory=list)
    """(URL, whether it answers, its error)."""
    outages: list[tuple[str, AdapterOutage]] = field(default_factory=list)
    """(URL, why it takes no adapters) of the engines that are up and take none."""
    candidates: list[Adapter] = field(default_factory=list)
    """Adapters that the gate has not decided on."""
    trainer_silence: float = 0.0
    """Seconds since the trainer last asked for work."""
    trainer_away: bool = False
    judge_silence: float = 0.0
    judge_away: bool = False
    judge_expected: bool = False
    """A judge is configured, or one has asked for work."""
    judge_budget: tuple[str, float] | None = None
    """The setting whose budget the judge waits for, and the seconds until it starts again."""
    sidecars: Sequence[tuple[str, str, str]] = ()
    """The children of `slipstream up` that are in trouble: (trainer or judge, its state, what is wrong)."""
    paused: str | None = None
    """Who paused training, and why."""
    engine_busy: str | None = None
    """What `slipstream up` says of its engine, while that does not answer."""
    held: bool = False
    """The trainer has the GPU."""
    behind: str | None = None
    """What another proxy made live and this one cannot load."""
    store_error: str | None = None
    lag: float = 0.0
    """Seconds that the store is behind the spool."""


def funnel_of(counts: FunnelCounts | None, around: Surroundings) -> Funnel:
    """``counts`` None: the store does not answer."""
    lines = [*engine_lines(around), *_store(counts, around)]
    rewards = (unweighted_lines, reward_lines, flat_lines)
    stages = (_calls, _episodes, _groups, _judge, *rewards, _untrainable, _lost, _ready, _trainer, _steps)
    for stage in stages:
        lines += stage(counts, around) if counts is not None else ()
    lines += _gate(around)
    return Funnel(lines=lines)


def _store(counts: FunnelCounts | None, around: Surroundings) -> Iterator[FunnelLine]:
    if around.store_error or counts is None:
        why = around.store_error or "it does not answer"
        fix = "see the proxy's log; the spool keeps calls and rewards meanwhile"
        text = f"the store takes nothing just now: {why}"
        yield FunnelLine(stage="store", cause="away", count=1, text=text, fix=fix, blocks=True)
    elif around.lag > 5.0:
        text = f"the store is {span(around.lag)} behind: it reads the spool's backlog"
        yield FunnelLine(stage="store", cause="behind", count=round(around.lag), text=text)


def _calls(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    if not counts.live:
        fix = "set the agent's OPENAI_BASE_URL to the proxy's address with /v1"
        text = "no call has come through the proxy yet"
        text += f" ({plural(counts.calls, 'call was', 'calls were')} imported)" if counts.calls else ""
        yield FunnelLine(stage="calls", cause="none", count=0, text=text, fix=fix, blocks=True)
    elif not counts.trained_calls:
        fix = f'let the agent ask for {around.config.model_name}, or map its model name in [models."<name>"]'
        text = "calls have come, and none asks for the trained model"
        yield FunnelLine(stage="calls", cause="untrained_model", count=counts.calls, text=text, fix=fix, blocks=True)
    if counts.orphans:
        text = f"{plural(counts.orphans, 'unknown episode has', 'unknown episodes have')} rewards but no calls"
        fix = (
            "their calls were refused, or never came here: post rewards to the x-slipstream-episode that the replies "
            "carry, with the key that made the calls"
        )
        yield FunnelLine(stage="calls", cause="orphan_rewards", count=counts.orphans, text=text, fix=fix)


def _episodes(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    if counts.open_episodes:
        text = f"{plural(counts.open_episodes, 'episode is', 'episodes are')} still open"
        if counts.next_end is not None:
            text += f"; without another call the next one ends in {span(max(0.0, counts.next_end - around.now))}"
        fix = "post the final reward, or send x-slipstream-done with the last call, and it ends at once"
        done = counts.outcomes or counts.forming.groups or counts.evaluating.groups or counts.missing or counts.ready
        soon = counts.next_end is not None and counts.next_end - around.now <= SOON
        stuck, count = not done and not soon, counts.open_episodes
        yield FunnelLine(stage="episodes", cause="open", count=count, text=text, fix=fix, blocks=stuck)
    if counts.without_task:
        text = f"{plural(counts.without_task, 'episode has', 'episodes have')} no task, so nothing compares them"
        fix = "send x-slipstream-task, or set groups.ungrouped = true"
        yield FunnelLine(stage="episodes", cause="no_task", count=counts.without_task, text=text, fix=fix)
    if counts.trained_calls and not counts.train_episodes:
        text = "all episodes are evaluation episodes (split = eval): they measure and never train"
        fix = "leave x-slipstream-split out for the runs to learn from"
        yield FunnelLine(stage="episodes", cause="all_eval", count=counts.calls, text=text, fix=fix, blocks=True)


def _groups(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
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
        stuck = not (counts.ready or counts.leased or counts.missing or counts.outcomes)
        yield FunnelLine(stage="groups", cause="forming", count=forming, text=text, fix=fix, blocks=stuck)
    if evaluating := counts.evaluating.groups:
        groups = plural(evaluating, "evaluation group forms", "evaluation groups form")
        text = f"{groups} with {plural(counts.evaluating.episodes, 'episode', 'episodes')}: never trained on"
        yield FunnelLine(stage="groups", cause="evaluation", count=evaluating, text=text)


def _judge(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    yield from _sidecar("judge", around, blocks=around.config.judge.name in counts.missing)
    if not around.judge_expected:
        return
    if counts.to_judge:
        rate = counts.judged / (RATE_SECONDS / 60)
        lag = max(0.0, around.now - (counts.oldest_to_judge or around.now))
        text = (
            f"{plural(counts.to_judge, 'group waits', 'groups wait')} for the judge, the oldest for {span(lag)}; "
            f"it scores {rate:.1f} episodes a minute"
        )
        fix = "raise judge.concurrency, choose a faster judge.model, or lower judge.votes" if lag > 60 else None
        yield FunnelLine(stage="judge", cause="waiting", count=counts.to_judge, text=text, fix=fix)
        if around.judge_budget is not None:
            setting, wait = around.judge_budget
            text = f"the judge's budget is spent ({setting}); it starts again in {span(wait)}"
            fix = f"raise {setting}, or choose a cheaper judge.model"
            yield FunnelLine(stage="judge", cause="budget", count=round(wait), text=text, fix=fix, blocks=wait > 60)
        if around.judge_away and not _in_trouble("judge", around):
            text = f"the judge has not asked for work for {span(around.judge_silence)}"
            fix = "start `slipstream judge` (or `slipstream up`), and see its log"
            wanted, silence = around.config.judge.name in around.config.reward.weights, round(around.judge_silence)
            yield FunnelLine(stage="judge", cause="away", count=silence, text=text, fix=fix, blocks=wanted)
    if counts.parked:
        text = f"{plural(counts.parked, 'group is', 'groups are')} parked: the judge failed too often"
        fix = "GET /slipstream/v1/groups/parked says which; fix the judge, then POST groups/{id}/retry"
        wanted = around.config.judge.name in around.config.reward.weights
        stuck = wanted and not (counts.judged or counts.ready or counts.leased)
        yield FunnelLine(stage="judge", cause="parked", count=counts.parked, text=text, fix=fix, blocks=stuck)


def _untrainable(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    total = sum(counts.untrainable.values())
    for reason, count in counts.untrainable.items():
        text = f"{plural(count, 'call', 'calls')} can't be trained on: {reason}"
        fix, stuck = fix_untrainable(reason), 0 < counts.trained_calls <= total
        yield FunnelLine(stage="untrainable", cause=reason[:80], count=count, text=text, fix=fix, blocks=stuck)


def _lost(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    for (state, cause), count in sorted(counts.lost.items()):
        why, fix = LOST.get((state, cause)) or LOST[state, "unknown"]
        text = f"{plural(count, 'group was', 'groups were')} lost: {why}"
        yield FunnelLine(stage="lost", cause=f"{state}_{cause}"[:80], count=count, text=text, fix=fix)


def _ready(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    need = around.config.trainer.min_groups
    if 0 < counts.ready < need:
        text = f"{plural(counts.ready, 'group', 'groups')} complete and scored, {need} needed for a step"
        fix = f"fewer are enough after trainer.max_wait ({span(around.config.trainer.max_wait)})"
        yield FunnelLine(stage="ready", cause="too_few", count=counts.ready, text=text, fix=fix)
    elif counts.ready:
        text = f"{plural(counts.ready, 'group is', 'groups are')} ready: the trainer takes them next"
        yield FunnelLine(stage="ready", cause="ready", count=counts.ready, text=text)
    elif not counts.leased:
        text = f"0 groups complete and scored, {need} needed for a step"
        yield FunnelLine(stage="ready", cause="none", count=0, text=text)


def _in_trouble(name: str, around: Surroundings) -> bool:
    return any(sidecar == name for sidecar, _, _ in around.sidecars)


def _sidecar(name: Literal["judge", "trainer"], around: Surroundings, *, blocks: bool) -> Iterator[FunnelLine]:
    """What `slipstream up` knows of its process."""
    for sidecar, state, text in around.sidecars:
        if sidecar == name:
            yield FunnelLine(stage=name, cause=state, count=1, text=text, blocks=blocks)


def _trainer(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    yield from _sidecar("trainer", around, blocks=True)
    if around.paused is not None:
        text = f"training is paused by {around.paused}"
        yield FunnelLine(stage="trainer", cause="paused", count=1, text=text, fix="slipstream resume", blocks=True)
    if counts.leased:
        text = f"{plural(counts.leased, 'group is', 'groups are')} being trained on"
        yield FunnelLine(stage="trainer", cause="training", count=counts.leased, text=text)
    elif around.trainer_away and not _in_trouble("trainer", around):
        text = f"the trainer has not asked for work for {span(around.trainer_silence)}"
        fix = "start `slipstream trainer` (or `slipstream up`), and see its log"
        silence = round(around.trainer_silence)
        yield FunnelLine(stage="trainer", cause="away", count=silence, text=text, fix=fix, blocks=True)
    if counts.last_skipped is not None:
        text = f"the trainer skipped its latest batch: {counts.last_skipped}"
        fix = "see the lines above, and the docs on the trainer's guards (max_ratio, max_engine_kl, max_grad)"
        yield FunnelLine(stage="trainer", cause="skipped", count=1, text=text, fix=fix)


def _steps(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    small = [kl for kl in counts.kls if kl < 1]
    if counts.kls and len(small) == len(counts.kls):
        latest = plural(len(small), "step", "steps")
        text = f"the latest {latest} hardly changed the policy (KL below a hundredth of a full step's)"
        fix = 'set trainer.learning_rate = "auto", or raise it'
        if around.config.trainer.learning_rate == "auto":
            fix = "the learning rate rises by itself; the step events name the cause"
        yield FunnelLine(stage="step", cause="small_kl", count=len(small), text=text, fix=fix)
    if (gap := counts.engine_gap) is not None and gap > ENGINE_GAP:
        text = (
            f"the engine's log-probabilities are {gap:.2g} nats a token away from the trainer's with the same weights "
            f"(up to {ENGINE_GAP} is usual): the trainer learns from tokens that the model would not choose"
        )
        fix = (
            "load the same model in engine and trainer (name, revision, no quantisation), and start vLLM without a "
            "--compilation-config or --kv-cache-dtype of your own"
        )
        yield FunnelLine(stage="step", cause="engine_gap", count=round(1000 * gap), text=text, fix=fix)


def _gate(around: Surroundings) -> Iterator[FunnelLine]:
    gate = around.config.gate
    for candidate in around.candidates:
        if gate.mode == "manual":
            text = f"{candidate.name} waits for a person: gate.mode is manual"
            fix = f"`slipstream adapters promote {candidate.name}`, or roll it back"
            yield FunnelLine(stage="gate", cause="manual", count=1, text=text, fix=fix)
            continue
        report = candidate.gate or GateReport()
        seen = report.trial_episodes
        control = report.control or "the adapter before it"
        episodes = plural(seen, "episode", "episodes")
        text = f"the gate compares {candidate.name} with {control}: {episodes} on trial so far"
        if report.reason:
            text += f"; {report.reason}"
        if report.episodes_left is not None:
            text += f" (a verdict is likely after {plural(report.episodes_left, 'more', 'more')})"
        fix = report.fix or f"wait, or decide by hand: `slipstream adapters promote {candidate.name}`"
        yield FunnelLine(stage="gate", cause="undecided", count=seen, text=text, fix=fix)
