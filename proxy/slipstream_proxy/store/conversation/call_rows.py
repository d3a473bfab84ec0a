"""Between a call as the data plane recorded it, its row, and the call that users see: whole, or in deltas as it is
stored.

Nothing is put together before it is asked for, so that a run of thousands of calls costs what its rows hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from slipstream.contract import WHOLE_CALLS, CallRecord, Form, SharedPrefix
from slipstream.shared.prefixes import Anchored, anchor
from slipstream_proxy.dialects.untrainable import UntrainableReason
from slipstream_proxy.store.conversation.fingerprint import NO_IDS, Cut, Known, Links, Prompt, TokenPrint, chain, digest
from slipstream_proxy.store.conversation.kinds import MAIN_KIND
from slipstream_proxy.store.conversation.order import Stamp
from slipstream_proxy.store.conversation.tree import Answered, Asked, issued_ids, returned_ids, words_of
from slipstream_proxy.store.tables.rows import (
    CallRow,
    Floats,
    Ids,
    clean,
    dump,
    dump_list,
    floats_of,
    ids_of,
    load,
    name_of,
    same_named,
    short,
)
from slipstream_proxy.store.values import RecordedCall

PAGE_BYTES = 8 * 2**20
"""JSON of one page of calls, about; one call alone may weigh more."""
PAGE_CALLS = 5_000


@dataclass(slots=True, frozen=True)
class CallPage:
    """Those from number ``first`` on, at most ``most``."""

    form: Form = "auto"
    first: int = 0
    most: int = PAGE_CALLS


EVERY_CALL = CallPage()
"""As many as a page holds, from the first on."""


ERROR_LIMIT = 4096
"""Characters that are kept of an upstream's error."""


def untrainable_reason(call: RecordedCall) -> str | None:
    """Why no token of this call may be trained on; None when it may."""
    head, parsed = call.head, call.parsed
    if head.outcome != "ok":
        return head.outcome
    if head.note == "redacted":  # another model's, too: its text is not to be imitated
        return head.note
    if head.external or head.trained is None:
        return "not a trained model"
    if parsed.untrainable:
        return parsed.untrainable
    if not any(c.completion_ids for c in parsed.choices) or not parsed.prompt_ids:
        return head.note or "no token ids"
    if any(len(c.completion_ids) != len(c.logprobs) for c in parsed.choices):
        return "no log-probabilities"
    return None


@dataclass(slots=True)
class Packed:
    """A call's parts as they are stored, before what it shares with an earlier call is cut off."""

    prompt: Prompt
    completion: Ids
    """The ids of all choices, one choice after the other."""
    replies: list[str]
    firsts: list[int]
    """Tokens of each choice."""
    asked: Asked
    issued: list[str]
    words: list[bytes | None]
    """One fingerprint for each reply."""
    counted: tuple[int, int] | None = None
    """Tokens in and out of an imported call, whose ids nobody knows."""
    _sequences: list[TokenPrint] | None = None

    @property
    def tokens(self) -> tuple[int, int]:
        return self.counted or (int(self.prompt.ids.size), int(self.completion.size))

    def sequences(self) -> list[TokenPrint]:
        """Prompt and completion of each choice."""
        if self._sequences is not None:
            return self._sequences
        parts: list[TokenPrint] = []
        at = 0
        for n in self.firsts:
            ids = np.concatenate((self.prompt.ids, self.completion[at : at + n]))
            parts.append(TokenPrint.of(ids, self.prompt.blocks))
            at += n
        self._sequences = parts
        return parts

    def known(self, call: str) -> Known:
        """The call as one that later ones may begin with."""
        links = chain([digest(self.replies[0])] if self.replies else [], self.prompt.chain)
        tokens = self.sequences()[0] if self.firsts else TokenPrint.of(self.prompt.ids, self.prompt.blocks)
        return Known(call, Links(links), tokens.packed(), self.prompt.tools_digest)

    def answered(self, call: str) -> Answered:
        """The call as one that later ones may extend."""
        links = self.prompt.chain
        ends = [chain([digest(reply)], links[-1:])[-1] for reply in self.replies]
        tokens = [tokens.whole() for tokens, n in zip(self.sequences(), self.firsts, strict=True) if n]
        return Answered(call, links[-1], self.words, ends, tokens, self.issued)


def pack(call: RecordedCall) -> Packed:
    parsed = call.parsed
    flat = [t for c in parsed.choices for t in c.completion_ids]
    issued = [i for c in parsed.choices for i in issued_ids(c.message)]
    packed = _packed(
        parsed.messages,
        parsed.tools,
        np.asarray(parsed.prompt_ids, "<i4"),
        np.asarray(flat, "<i4"),
        [c.message for c in parsed.choices],
        [len(c.completion_ids) for c in parsed.choices],
        [*issued, *([call.response_id] if call.response_id else [])],
        [call.previous_id] if call.previous_id else [],
    )
    packed.counted = _counted(call)
    return packed


def repack(row: CallRow, messages: list[Any], tools: list[Any], prompt: Ids) -> Packed:
    """A stored call with all of its prompt, as ``pack`` had it."""
    replies = load(row.reply, [])
    issued = [i for reply in replies for i in issued_ids(reply)]
    extra = load(row.extra, {})
    response, previous = extra.get("response_id"), extra.get("previous_id")
    lengths = ids_of(row.lengths).reshape(-1, 2)[:, 0].tolist()
    completion = ids_of(row.completion_ids)
    ids = [*issued, response] if response else issued
    return _packed(messages, tools, prompt, completion, replies, lengths, ids, [previous] if previous else [])


def _packed(
    messages: list[Any],
    tools: list[Any],
    prompt: Ids,
    completion: Ids,
    replies: list[Any],
    firsts: list[int],
    issued: list[str],
    returned: list[str],
) -> Packed:
    texts = [dump(m) for m in messages]
    links = chain([digest(t) for t in texts])
    blocks = TokenPrint.of(prompt).blocks
    tools_text = dump(tools) if tools else "[]"
    return Packed(
        Prompt(texts, links, prompt, blocks, tools_text, digest(tools_text)),
        completion,
        [dump(r) for r in replies],
        firsts,
        Asked(links, [words_of(m) for m in messages], prompt, blocks, [*returned, *returned_ids(messages)]),
        issued,
        [words_of(r[0] if isinstance(r, list) and len(r) == 1 else r) for r in replies],
    )


def _counted(call: RecordedCall) -> tuple[int, int] | None:
    """The server's own count, of a call without token ids."""
    usage = call.head.extra.get("usage")
    return (usage[0] or 0, usage[1] or 0) if usage else None


def _extra_of(call: RecordedCall, stamp: Stamp | None, kind: str) -> dict[str, object]:
    """What a call has beside its columns; members without a value are left out."""
    head = call.head
    extra: dict[str, object] = {
        "stream": head.stream,
        "first_byte": head.first_byte,
        "upstream": head.upstream,
        "origin": head.origin,
        "pin": head.pin,
    }
    if kind != MAIN_KIND:
        extra["kind"] = kind
    if head.note:
        extra["note"] = head.note
    if head.idempotency_key:
        extra["idempotency_key"] = head.idempotency_key
    if call.response_id:
        extra["response_id"] = call.response_id
    if call.previous_id:
        extra["previous_id"] = call.previous_id
    if stamp is not None:
        extra["stamp"] = stamp[1:]
    return extra


def call_row(
    call: RecordedCall,
    eid: str,
    number: int,
    packed: Packed,
    cut: Cut,
    extends: str | None = None,
    stamp: Stamp | None = None,
    kind: str = MAIN_KIND,
    *,
    left_out: bool = False,
) -> CallRow:
    """``stamp``: where several proxies write into the store. ``left_out``: calls of the kind are not trained on."""
    head, parsed = call.head, call.parsed
    reason = untrainable_reason(call) or (left_out_reason(kind) if left_out else None)
    temperature = parsed.sampling.get("temperature", 1.0)
    lengths = np.asarray([(len(c.completion_ids), len(c.logprobs)) for c in parsed.choices], "<i4")
    extra = _extra_of(call, stamp, kind)
    error = clean(parsed.error)
    return CallRow(
        id=head.id,
        eid=eid,
        number=number,
        ts=head.at,
        seconds=head.seconds,
        dialect=head.dialect,
        model=clean(head.model) or "",
        trained=head.trained,
        adapter=head.adapter,
        status=head.status,
        outcome=head.outcome,
        trainable=reason is None,
        reason=clean(reason),
        sampling=dump(parsed.sampling),
        temperature=float(temperature) if isinstance(temperature, int | float) else 1.0,
        delta_base=cut.base,
        keep_messages=cut.keep_messages,
        keep_tokens=cut.keep_tokens,
        messages=dump_list(cut.messages),
        tools=cut.tools,
        reply=dump_list(packed.replies),
        finish=dump([c.finish_reason for c in parsed.choices]),
        prompt_tokens=packed.tokens[0],
        completion_tokens=packed.tokens[1],
        prompt_ids=cut.ids.tobytes(),
        completion_ids=packed.completion.tobytes(),
        lengths=lengths.tobytes(),
        logprobs=np.asarray([x for c in parsed.choices for x in c.logprobs], "<f4").tobytes(),
        error=error[:ERROR_LIMIT] if error else None,
        body_hash=head.body_hash,
        attempt=head.attempt,
        extra=dump(extra),
        extends=extends,
    )


@lru_cache(maxsize=64)
def left_out_reason(kind: str) -> str:
    """Why a call of a kind that is not trained on is not."""
    return UntrainableReason.KIND.of(kind)


def kind_of(row: CallRow) -> str:
    """What the call is in its run (``kinds``)."""
    found: str = load(row.extra, {}).get("kind", MAIN_KIND)
    return found


def stamp_of(row: CallRow) -> Stamp:
    """When a stored call was acknowledged. Calls of earlier versions have their proxy's wall clock only."""
    boot, tick, at = load(row.extra, {}).get("stamp") or ("", 0.0, row.ts + row.seconds)
    return Stamp(row.id, boot, tick, at)


def choices_of(row: CallRow) -> list[tuple[Ids, Floats]]:
    """(completion ids, logprobs) of each choice."""
    ids, floats = ids_of(row.completion_ids), floats_of(row.logprobs)
    found, i, j = [], 0, 0
    for n, m in ids_of(row.lengths).reshape(-1, 2).tolist():
        found.append((ids[i : i + n], floats[j : j + m]))
        i, j = i + n, j + m
    return found


def call_public(row: CallRow, messages: list[object], tools: list[object], ids: Ids | None) -> CallRecord:
    """A stored call as users see it. ``ids``: of its prompt; None: without tokens."""
    finish = load(row.finish, [])
    choices = choices_of(row) if ids is not None else []
    other = {
        "episode": name_of(row.eid)[1],
        "at": row.ts,
        "untrainable_reason": row.reason,
        "sampling": load(row.sampling, {}),
        "messages": messages,
        "tools": tools,
        "reply": load(row.reply, []),
        "finish_reason": finish[0] if finish else None,
        "kind": kind_of(row),
        "prompt_ids": None if ids is None else ids.tolist(),
        "completion_ids": None if ids is None else [sampled.tolist() for sampled, _ in choices],
        "logprobs": None if ids is None else [short(values) for _, values in choices],
    }
    return CallRecord(**same_named(row, CallRecord) | other)


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
        return [*itertools.chain.from_iterable(found.pieces), *self._own(row)]

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
        messages = [*itertools.chain.from_iterable(said.pieces), *self._own(row)]
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
