"""Calls that travel in deltas, put together again: what a call shares with an earlier one stands there alone.

A call's *sequence* is its prompt followed by its first reply. A later call names the call whose sequence it begins
with and how much of it (``contract.SharedPrefix``), and carries what comes after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from slipstream.contract import CallRecord, EpisodeDetail, Group, SharedPrefix

C = TypeVar("C")
P = TypeVar("P")


class Anchored(NamedTuple, Generic[C, P]):
    """A call's beginning: the first ``keep`` parts of ``base``'s sequence, then ``pieces``."""

    base: C | None
    keep: int
    pieces: list[P]


def anchor(
    call: C,
    base_of: Callable[[C], tuple[C | None, int]],
    head_of: Callable[[C, int], P],
    stays: Callable[[C], bool] = lambda _: False,
) -> Anchored[C, P]:
    """Where a call's beginning stands, up to the nearest earlier call that ``stays``; by default all of it is in
    pieces.

    ``base_of``: the call whose sequence a call begins with (None: there is none) and how much of it is kept;
    ``head_of``: the first so many of a call's own part of its prompt and then its first reply.
    """
    pieces: list[P] = []
    base, keep = base_of(call)
    while base is not None and not stays(base):
        before, kept = base_of(base)
        if before is None:
            kept = 0
        if keep > kept:
            pieces.append(head_of(base, keep - kept))
            keep = kept
        base = before
    return Anchored(base, keep if base is not None else 0, pieces[::-1])


class Conversations:
    """What was said in the calls of one run, in whatever form they came. Unknown calls are passed over."""

    def __init__(self, calls: Iterable[CallRecord]) -> None:
        self._calls = {c.id: c for c in calls}

    def _base(self, call: CallRecord) -> CallRecord | None:
        return self._calls.get(call.prefix.call) if call.prefix else None

    def messages(self, call: CallRecord) -> list[object]:
        """All messages of the call's request."""
        found = anchor(
            call,
            lambda c: (self._base(c), c.prefix.messages if c.prefix else 0),
            lambda c, n: [*c.messages, *c.reply[:1]][:n],
        )
        return [*chain.from_iterable(found.pieces), *call.messages]

    def prompt_ids(self, call: CallRecord) -> list[int] | None:
        """All ids of the call's prompt; None: it came without tokens."""
        if call.prompt_ids is None:
            return None
        found = anchor(
            call,
            lambda c: (self._base(c), c.prefix.tokens if c.prefix else 0),
            lambda c, n: [*(c.prompt_ids or ()), *(c.completion_ids or [[]])[0]][:n],
        )
        return [*chain.from_iterable(found.pieces), *call.prompt_ids]

    def tools(self, call: CallRecord) -> list[object]:
        """The tools that the call offered."""
        while call.prefix and call.prefix.tools and (base := self._base(call)) is not None:
            call = base
        return call.tools

    def whole(self, call: CallRecord) -> CallRecord:
        """The call with all of its prompt."""
        if call.prefix is None:
            return call
        said, ids, tools = self.messages(call), self.prompt_ids(call), self.tools(call)
        return call.model_copy(update={"messages": said, "prompt_ids": ids, "tools": tools, "prefix": None})


def whole_calls(calls: Sequence[CallRecord]) -> list[CallRecord]:
    """The calls of one run, in order, each whole. Calls share messages; each has token ids of its own."""
    made: dict[str, CallRecord] = {}
    for call in calls:
        made[call.id] = _after(made.get(call.prefix.call), call, call.prefix) if call.prefix else call
    return list(made.values())


def _after(base: CallRecord | None, call: CallRecord, prefix: SharedPrefix) -> CallRecord:
    """``base``: whole; None: it is not there."""
    if base is None:
        return call.model_copy(update={"prefix": None})
    before = [*base.messages[: prefix.messages], *base.reply[: max(0, min(1, prefix.messages - len(base.messages)))]]
    ids = call.prompt_ids
    if ids is not None:
        said = (base.completion_ids or [[]])[0]
        prompt = base.prompt_ids or []
        ids = [*prompt[: prefix.tokens], *said[: max(0, prefix.tokens - len(prompt))], *ids]
    tools = base.tools if prefix.tools else call.tools
    return call.model_copy(
        update={"messages": before + call.messages, "prompt_ids": ids, "tools": tools, "prefix": None}
    )


def joined(episode: EpisodeDetail, more: EpisodeDetail) -> EpisodeDetail:
    """A page of an episode's calls and the page after it."""
    calls = [*episode.call_list, *more.call_list]
    return more.model_copy(update={"call_list": calls})


def whole_episode(episode: EpisodeDetail) -> EpisodeDetail:
    """The episode with whole calls, as short runs have them anyway."""
    return episode.model_copy(update={"call_list": whole_calls(episode.call_list)})


def whole_group(group: Group) -> Group:
    """The judge's group with whole calls."""
    runs = [e.model_copy(update={"calls": whole_calls(e.calls)}) for e in group.episodes]
    return group.model_copy(update={"episodes": runs})
