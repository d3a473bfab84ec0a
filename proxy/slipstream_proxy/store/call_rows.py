"""Between a call as the data plane recorded it, its row, and the call that users see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream.contract import CallRecord
from slipstream_proxy.store import delta
from slipstream_proxy.store.codec import Floats, Ids, clean, dump, dump_list, floats_of, ids_of, load
from slipstream_proxy.store.delta import Cut, Known, Whole
from slipstream_proxy.store.protocol import RecordedCall
from slipstream_proxy.store.rows import CallRow

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

    texts: list[str]
    digests: list[bytes]
    tools: str
    prompt: Ids
    completion: Ids
    replies: list[str]
    first: int = 0
    """Tokens of the first choice."""

    def known(self, call: str) -> Known:
        """The call as one that later ones may begin with."""
        first = self.completion[: self.first]
        reply = [delta.digest(self.replies[0])] if self.replies else []
        return Known(call, self.digests + reply, np.concatenate((self.prompt, first)), self.tools)


def pack(call: RecordedCall) -> Packed:
    parsed = call.parsed
    texts = [dump(m) for m in parsed.messages]
    flat = [t for c in parsed.choices for t in c.completion_ids]
    return Packed(
        texts,
        [delta.digest(t) for t in texts],
        dump(parsed.tools) if parsed.tools else "[]",
        np.asarray(parsed.prompt_ids, "<i4"),
        np.asarray(flat, "<i4"),
        [dump(c.message) for c in parsed.choices],
        len(parsed.choices[0].completion_ids) if parsed.choices else 0,
    )


def call_row(call: RecordedCall, eid: str, number: int, packed: Packed, cut: Cut) -> CallRow:
    head, parsed = call.head, call.parsed
    reason = untrainable_reason(call)
    temperature = parsed.sampling.get("temperature", 1.0)
    lengths = np.asarray([(len(c.completion_ids), len(c.logprobs)) for c in parsed.choices], "<i4")
    extra = {
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
        prompt_tokens=int(packed.prompt.size),
        completion_tokens=int(packed.completion.size),
        prompt_ids=cut.ids.tobytes(),
        completion_ids=packed.completion.tobytes(),
        lengths=lengths.tobytes(),
        logprobs=np.asarray([x for c in parsed.choices for x in c.logprobs], "<f4").tobytes(),
        error=error[:ERROR_LIMIT] if error else None,
        body_hash=head.body_hash,
        attempt=head.attempt,
        extra=dump(extra),
    )


def whole(row: CallRow, wholes: dict[str, Whole], *, text: bool = True) -> Whole:
    """Put a call together from its row and the earlier call it begins with, which stands in ``wholes`` already; remember it there.

    ``text`` False: tokens only.
    """
    lengths = ids_of(row.lengths).reshape(-1, 2)
    made = delta.join(
        wholes.get(row.delta_base or ""),
        row.keep_messages,
        row.keep_tokens,
        load(row.messages, []) if text else [],
        ids_of(row.prompt_ids),
        load(row.tools) if text else None,
    )
    reply = load(row.reply, []) if text else []
    made.sequence = made.messages + reply[:1]
    first = ids_of(row.completion_ids)[: int(lengths[0, 0])] if len(lengths) else delta.NO_IDS
    made.sequence_ids = np.concatenate((made.ids, first))
    wholes[row.id] = made
    return made


def choices_of(row: CallRow) -> list[tuple[Ids, Floats]]:
    """(completion ids, logprobs) of each choice."""
    ids, floats = ids_of(row.completion_ids), floats_of(row.logprobs)
    found, i, j = [], 0, 0
    for n, m in ids_of(row.lengths).reshape(-1, 2).tolist():
        found.append((ids[i : i + n], floats[j : j + m]))
        i, j = i + n, j + m
    return found


def call_public(row: CallRow, made: Whole, *, tokens: bool) -> CallRecord:
    finish = load(row.finish, [])
    choices = choices_of(row) if tokens else []
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
        messages=made.messages,
        tools=made.tools,
        reply=load(row.reply, []),
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        prompt_ids=made.ids.tolist() if tokens else None,
        completion_ids=[ids.tolist() for ids, _ in choices] if tokens else None,
        logprobs=[values.tolist() for _, values in choices] if tokens else None,
        finish_reason=finish[0] if finish else None,
        error=row.error,
        extends=row.extends,
    )
