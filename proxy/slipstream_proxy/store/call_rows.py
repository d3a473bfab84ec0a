"""Between a call as the data plane recorded it, its row, and the call that users see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.contract import CallRecord
from slipstream_proxy.store.codec import Floats, Ids, clean, dump, dump_list, floats_of, ids_of, load, short
from slipstream_proxy.store.delta import NO_IDS, Cut, Known, Prompt
from slipstream_proxy.store.fingerprint import Links, TokenPrint, chain, digest
from slipstream_proxy.store.order import Stamp
from slipstream_proxy.store.rows import CallRow
from slipstream_proxy.store.tree import Answered, Asked, issued_ids, returned_ids, words_of
from slipstream_proxy.store.values import RecordedCall

ERROR_LIMIT = 4096
"""Characters that are kept of an upstream's error."""


def untrainable_reason(call: RecordedCall) -> str | None:
    """Why no token of this call may be trained on; None when it may."""
    head, parsed = call.head, call.parsed
    if head.outcome != "ok":
        return head.outcome
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

    def sequences(self) -> list[Ids]:
        """Prompt and completion of each choice."""
        parts, at = [], 0
        for n in self.firsts:
            parts.append(np.concatenate((self.prompt.ids, self.completion[at : at + n])))
            at += n
        return parts

    def known(self, call: str) -> Known:
        """The call as one that later ones may begin with."""
        links = chain([digest(self.replies[0])] if self.replies else [], self.prompt.chain)
        first = self.completion[: self.firsts[0]] if self.firsts else NO_IDS
        tokens = TokenPrint.of(np.concatenate((self.prompt.ids, first)))
        return Known(call, Links(links), tokens.packed(), self.prompt.tools_digest)

    def answered(self, call: str) -> Answered:
        """The call as one that later ones may extend."""
        links = self.prompt.chain
        ends = [chain([digest(reply)], links[-1:])[-1] for reply in self.replies]
        tokens = [TokenPrint.of(ids).whole() for ids, n in zip(self.sequences(), self.firsts, strict=True) if n]
        return Answered(call, links[-1], self.words, ends, tokens, self.issued)


def pack(call: RecordedCall) -> Packed:
    parsed = call.parsed
    flat = [t for c in parsed.choices for t in c.completion_ids]
    issued = [i for c in parsed.choices for i in issued_ids(c.message)]
    return _packed(
        parsed.messages,
        parsed.tools,
        np.asarray(parsed.prompt_ids, "<i4"),
        np.asarray(flat, "<i4"),
        [c.message for c in parsed.choices],
        [len(c.completion_ids) for c in parsed.choices],
        [*issued, *([call.response_id] if call.response_id else [])],
        [call.previous_id] if call.previous_id else [],
    )


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


def _extra_of(call: RecordedCall, stamp: Stamp | None) -> dict[str, object]:
    """What a call has beside its columns; members without a value are left out."""
    head = call.head
    extra: dict[str, object] = {
        "stream": head.stream,
        "first_byte": head.first_byte,
        "upstream": head.upstream,
        "origin": head.origin,
        "pin": head.pin,
    }
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
) -> CallRow:
    """``stamp``: where several proxies write into the store."""
    head, parsed = call.head, call.parsed
    reason = untrainable_reason(call)
    temperature = parsed.sampling.get("temperature", 1.0)
    lengths = np.asarray([(len(c.completion_ids), len(c.logprobs)) for c in parsed.choices], "<i4")
    extra = _extra_of(call, stamp)
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
        prompt_tokens=int(packed.prompt.ids.size),
        completion_tokens=int(packed.completion.size),
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
    return CallRecord(
        id=row.id,
        episode=row.eid.split("/", 1)[1],
        number=row.number,
        at=row.ts,
        seconds=row.seconds,
        dialect=row.dialect,
        model=row.model,
        adapter=row.adapter,
        trained=row.trained,
        status=row.status,
        outcome=row.outcome,
        trainable=row.trainable,
        untrainable_reason=row.reason,
        sampling=load(row.sampling, {}),
        messages=messages,
        tools=tools,
        reply=load(row.reply, []),
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        prompt_ids=None if ids is None else ids.tolist(),
        completion_ids=None if ids is None else [sampled.tolist() for sampled, _ in choices],
        logprobs=None if ids is None else [short(values) for _, values in choices],
        finish_reason=finish[0] if finish else None,
        error=row.error,
        extends=row.extends,
    )
