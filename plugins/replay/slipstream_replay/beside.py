"""Both sides' replies to one prompt as groups of runs, each of which a judge compares in both orders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from slipstream.contract import Episode, EpisodeState, Group, GroupEpisode, GroupKind, Score, Split
from slipstream_replay.steps import ReplayCase, ReplayStep, Reply

MAX_REPLIES_PER_SIDE = 4
"""Replies of a side that a judge sees together."""


def groups_of_step(case: ReplayCase, step: ReplayStep, name: str) -> list[Group]:
    """One for each ``MAX_REPLIES_PER_SIDE`` replies. A side that has fewer parts gives its first one again (recorded
    replies).
    """
    sides = [
        [r[at : at + MAX_REPLIES_PER_SIDE] for at in range(0, len(r), MAX_REPLIES_PER_SIDE)]
        for r in (step.candidate, step.control)
    ]
    parts = range(max(map(len, sides)))
    return [_group(case, step, [s[n % len(s)] for s in sides], f"{name}-{n}") for n in parts]


def _group(case: ReplayCase, step: ReplayStep, sides: Sequence[list[Reply]], name: str) -> Group:
    """The judge sees no name: ``a0`` is a candidate's reply, ``b0`` a control's."""
    runs = [
        _run(case, step, f"{side}{n}", reply)
        for side, replies in zip("ab", sides, strict=True)
        for n, reply in enumerate(replies)
    ]
    e = case.episode
    shared = {"key": e.key, "task": e.task, "split": Split.EVAL, "model": e.model}
    return Group(id=name[:128], kind=GroupKind.TASK, episodes=runs, both_orders=True, **shared)


def _run(case: ReplayCase, step: ReplayStep, name: str, reply: Reply) -> GroupEpisode:
    e = case.episode
    call = step.call.model_copy(
        update={"id": name, "episode": name, "number": 0, "reply": [reply["message"]], "extends": None, "kind": "main",
                "finish_reason": reply.get("finish_reason"), "prompt_ids": None, "completion_ids": None,
                "logprobs": None, "adapter": None}
    )  # fmt: skip
    run = Episode(
        id=name, key=e.key, task=e.task, split=Split.EVAL, model=e.model, adapter=None, state=EpisodeState.DONE,
        started=e.started, ended=e.ended, calls=1,
    )  # fmt: skip
    return GroupEpisode(episode=run, calls=[call], rewards=[])


def note(step: ReplayStep, group: Group, scores: Sequence[Score]) -> None:
    """A judge's scores of one of the step's groups. Several judges' are averaged.

    Raises ``ValueError`` where one is missing.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for score in scores:
        found[score.episode].append(score.value)
    if found.keys() != {run.episode.id for run in group.episodes}:
        raise ValueError("the judge left out a reply")
    a, b = ([fmean(found[n]) for n in sorted(found) if n[:1] == side] for side in "ab")
    step.judged.append((a, b))
