"""The calls of one run out of their rows: in deltas as they are stored, or whole, one at a time.

Nothing is put together before it is asked for, so that a run of thousands of calls costs what its rows hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from slipstream.contract import WHOLE_CALLS, CallRecord, Form, SharedPrefix
from slipstream.prefixes import Anchored, anchor
from slipstream_proxy.store.call_page import PAGE_BYTES, CallPage
from slipstream_proxy.store.call_rows import call_public
from slipstream_proxy.store.codec import Ids, ids_of, load
from slipstream_proxy.store.delta import NO_IDS
from slipstream_proxy.store.rows import CallRow

CALL_BYTES = 900
"""What a call's other fields weigh as JSON, about."""
ID_BYTES, LOGPROB_BYTES = 7, 13
"""What a token's id and its log-probability weigh as JSON, about."""


def is_whole(form: Form, calls: int) -> bool:
    """Whether the calls of a run of so many travel whole."""
    return form == "whole" or (form == "auto" and calls <= WHOLE_CALLS)


def weight_of(row: CallRow, *, tokens: bool) -> int:
    """Bytes of JSON that a stored call is as a delta, about."""
    text = sum(len(part) for part in (row.messages, row.tools, row.reply, row.error) if part)
    if not tokens:
        return CALL_BYTES + text
    ids = (len(row.prompt_ids) + len(row.completion_ids)) // 4
    return CALL_BYTES + text + ID_BYTES * ids + LOGPROB_BYTES * len(row.logprobs) // 4


def head_ids(row: CallRow, count: int) -> Ids:
    """The first so many ids of a call's own part of its prompt and then its first reply."""
    lengths = ids_of(row.lengths)
    first = ids_of(row.completion_ids)[: int(lengths[0])] if len(lengths) else NO_IDS
    return np.concatenate((ids_of(row.prompt_ids), first))[:count]


class CallList:
    """``rows``: of one run, by number. If a call's base is not among them, the call's own part is what there is."""

    def __init__(self, rows: Sequence[CallRow]) -> None:
        self.rows = rows
        self._by_id = {row.id: row for row in rows}
        self._said: dict[str, list[object]] = {}
        """Call → its own messages and its first reply."""

    def base(self, row: CallRow) -> CallRow | None:
        """The call that it shares its beginning with."""
        return self._by_id.get(row.delta_base) if row.delta_base else None

    def _own(self, row: CallRow) -> list[object]:
        found: list[object] = load(row.messages, [])
        return found

    def _head(self, row: CallRow, count: int) -> list[object]:
        """The first so many of its own messages and then its first reply."""
        found = self._said.get(row.id)
        if found is None:
            found = self._said[row.id] = [*self._own(row), *load(row.reply, [])[:1]]
        return found[:count]

    def messages(self, row: CallRow) -> list[object]:
        """All messages of the call's request."""
        found = anchor(row, lambda r: (self.base(r), r.keep_messages), self._head)
        return [*chain.from_iterable(found.pieces), *self._own(row)]

    def anchored_ids(
        self, row: CallRow, stays: Callable[[CallRow], bool] = lambda _: False
    ) -> tuple[Anchored[CallRow, Ids], Ids]:
        """Where the prompt's ids begin (``prefixes.anchor``), and the ids from there on; by default all of them."""
        found = anchor(row, lambda r: (self.base(r), r.keep_tokens), head_ids, stays)
        return found, np.concatenate((*found.pieces, ids_of(row.prompt_ids)))

    def ids(self, row: CallRow) -> Ids:
        """All ids of the call's prompt."""
        return self.anchored_ids(row)[1]

    def tools(self, row: CallRow) -> list[object]:
        """The tools that the call offered."""
        while row.tools is None and (base := self.base(row)) is not None:
            row = base
        found: list[object] = load(row.tools, [])
        return found

    def whole(self, row: CallRow, *, tokens: bool) -> CallRecord:
        """The call with all of its prompt."""
        ids = self.ids(row) if tokens else None
        return call_public(row, self.messages(row), self.tools(row), ids)

    def delta(self, row: CallRow, *, tokens: bool, stays: Callable[[CallRow], bool] = lambda _: True) -> CallRecord:
        """The call without what it shares with an earlier one that ``stays`` in the list."""
        if self.base(row) is None:
            # a page may begin after the base
            made = call_public(row, self._own(row), load(row.tools, []), ids_of(row.prompt_ids) if tokens else None)
            if row.delta_base is not None:
                kept = {"messages": row.keep_messages, "tokens": row.keep_tokens}
                made.prefix = SharedPrefix(call=row.delta_base, **kept, tools=row.tools is None)
            return made
        said = anchor(row, lambda r: (self.base(r), r.keep_messages), self._head, stays)
        sampled, ids = self.anchored_ids(row, stays)
        base, holder = said.base, row
        while holder.tools is None and holder is not base and (before := self.base(holder)) is not None:
            holder = before
        shared = holder is base
        messages = [*chain.from_iterable(said.pieces), *self._own(row)]
        made = call_public(row, messages, [] if shared else load(holder.tools, []), ids if tokens else None)
        if base is not None:
            made.prefix = SharedPrefix(call=base.id, messages=said.keep, tokens=sampled.keep, tools=shared)
        return made

    def records(self, form: Form, *, tokens: bool, stays: Callable[[CallRow], bool] | None = None) -> list[CallRecord]:
        """The calls that stay (default: all), in that form."""
        kept = [row for row in self.rows if stays is None or stays(row)]
        if is_whole(form, len(self.rows)):
            return [self.whole(row, tokens=tokens) for row in kept]
        return [self.delta(row, tokens=tokens, stays=stays or (lambda _: True)) for row in kept]

    def page(self, wanted: CallPage, *, whole: bool, tokens: bool) -> tuple[list[CallRecord], int | None]:
        """The calls of a page, and the number of the first that it has no room for."""
        weights: dict[str, int] = {}
        found: list[CallRecord] = []
        size = 0
        for row in self.rows:
            own = weight_of(row, tokens=tokens)
            weights[row.id] = own + int(weights.get(row.delta_base or "", 0) * self._share(row))
            if row.number < wanted.first:
                continue
            size += weights[row.id] if whole else own
            if found and (len(found) >= wanted.most or size > PAGE_BYTES):
                return found, row.number
            found.append(self.whole(row, tokens=tokens) if whole else self.delta(row, tokens=tokens))
        return found, None

    def _share(self, row: CallRow) -> float:
        """How much of its base's sequence the call begins with, about."""
        base = self.base(row)
        if base is None or not row.keep_tokens:
            return 1.0
        return min(1.0, row.keep_tokens / max(1, base.prompt_tokens + base.completion_tokens))
