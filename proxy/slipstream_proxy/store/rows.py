"""Between the contract's objects and the tables' rows."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any

import numpy as np
import orjson

from slipstream.contract import CallRecord, Episode, EpisodeState, Reward, Split
from slipstream_proxy.store import compact
from slipstream_proxy.store.compact import Cut, Ids, Known, Whole
from slipstream_proxy.store.driver import Row
from slipstream_proxy.store.protocol import CallRow
from slipstream_proxy.store.schema import CALLS

ERROR_LIMIT = 4096
C = {name: i for i, name in enumerate(CALLS)}


def dump(value: Any) -> str:
    """JSON text. What orjson cannot write (lone surrogates, integers beyond 64 bits) is written in ASCII escapes, marked by a leading space."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return " " + json.dumps(value, separators=(",", ":"))


def load(text: str | None, default: Any = None) -> Any:
    """The inverse of ``dump``."""
    if text is None:
        return default
    return json.loads(text) if text.startswith(" ") else orjson.loads(text)


def dump_list(texts: list[str]) -> str:
    """One JSON array of values that are JSON texts already."""
    body = "[" + ",".join(texts) + "]"
    return " " + body if any(t.startswith(" ") for t in texts) else body


def clean(text: str | None) -> str | None:
    """A client's string as databases take it: no NUL, no lone surrogate."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def ids_of(blob: bytes | None) -> Ids:
    return np.frombuffer(blob or b"", "<i4")


def floats_of(blob: bytes | None) -> Any:
    return np.frombuffer(blob or b"", "<f4")


@dataclass(slots=True)
class Ep:
    """A row of ``t_episodes``."""

    eid: str
    key: str
    id: str
    task: str | None = None
    split: str = "train"
    tags: str = "{}"
    model: str = ""
    adapter: str | None = None
    arm: str = "live"
    state: str = "open"
    started: float = 0.0
    last_at: float = 0.0
    ended: float | None = None
    calls: int = 0
    trained_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reward: float | None = None
    grp: str | None = None
    grouped: bool = True
    alike: str = ""
    adapters: str = "[]"
    retried: bool = False

    def row(self) -> Row:
        return tuple(getattr(self, name) for name in EP_FIELDS)

    def public(self) -> Episode:
        return Episode(
            id=self.id, key=self.key, task=self.task, split=Split(self.split), tags=load(self.tags, {}), model=self.model, adapter=self.adapter,
            arm=self.arm if self.arm in ("control", "candidate") else "live", state=EpisodeState(self.state), started=self.started,
            ended=self.ended, calls=self.calls, prompt_tokens=self.prompt_tokens, completion_tokens=self.completion_tokens,
            reward=self.reward, group=self.grp,
        )  # fmt: skip


EP_FIELDS = tuple(f.name for f in fields(Ep))
EP_COLUMNS = ", ".join(EP_FIELDS)


def eid_of(key: str, episode: str) -> str:
    return f"{key}/{episode}"


def untrainable(call: CallRow) -> str | None:
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


def alike_of(call: CallRow) -> str:
    """What ungrouped episodes are alike by: system prompt and tools of the first call."""
    first = []
    for message in call.parsed.messages:
        if not (isinstance(message, dict) and message.get("role") in ("system", "developer")):
            break
        first.append(message)
    return blake2b(dump([first, call.parsed.tools]).encode(), digest_size=8).hexdigest()


@dataclass(slots=True)
class Packed:
    """A call's parts as they are stored, before its parent is known."""

    texts: list[str]
    digests: list[bytes]
    tools: str
    prompt: Ids
    completion: Ids
    replies: list[str]

    def known(self, call: str) -> Known:
        """The call as a parent of later ones."""
        first = self.completion[: self.first]
        reply = [compact.digest(self.replies[0])] if self.replies else []
        return Known(call, self.digests + reply, np.concatenate((self.prompt, first)), self.tools)

    first: int = 0


def pack(call: CallRow) -> Packed:
    parsed = call.parsed
    texts = [dump(m) for m in parsed.messages]
    flat = [t for c in parsed.choices for t in c.completion_ids]
    return Packed(
        texts, [compact.digest(t) for t in texts], dump(parsed.tools) if parsed.tools else "[]", np.asarray(parsed.prompt_ids, "<i4"),
        np.asarray(flat, "<i4"), [dump(c.message) for c in parsed.choices], len(parsed.choices[0].completion_ids) if parsed.choices else 0,
    )  # fmt: skip


def call_row(call: CallRow, eid: str, number: int, packed: Packed, cut: Cut) -> Row:
    """A row of the day's table."""
    head, parsed = call.head, call.parsed
    reason = untrainable(call)
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
    return (
        head.id, eid, number, head.at, head.seconds, head.dialect, clean(head.model), head.trained, head.adapter, head.status, head.outcome,
        reason is None, clean(reason), dump(parsed.sampling), float(temperature) if isinstance(temperature, int | float) else 1.0,
        cut.parent, cut.keep_messages, cut.keep_tokens, dump_list(cut.messages), cut.tools, dump_list(packed.replies),
        dump([c.finish_reason for c in parsed.choices]), int(packed.prompt.size), int(packed.completion.size), cut.ids.tobytes(),
        packed.completion.tobytes(), lengths.tobytes(), np.asarray([x for c in parsed.choices for x in c.logprobs], "<f4").tobytes(),
        error[:ERROR_LIMIT] if error else None, head.body_hash, head.attempt, dump(extra),
    )  # fmt: skip


def whole(row: Row, parents: dict[str, Whole], *, text: bool = True) -> Whole:
    """Put a call together from its row and its parent (which stands in ``parents`` already), and remember it there. ``text`` False: tokens only."""
    lengths = ids_of(row[C["lengths"]]).reshape(-1, 2)
    made = compact.join(
        parents.get(row[C["parent"]] or ""), row[C["keep_messages"]], row[C["keep_tokens"]], load(row[C["messages"]], []) if text else [],
        ids_of(row[C["prompt_ids"]]), load(row[C["tools"]]) if text else None,
    )  # fmt: skip
    reply = load(row[C["reply"]], []) if text else []
    made.sequence = made.messages + reply[:1]
    first = ids_of(row[C["completion_ids"]])[: int(lengths[0, 0])] if len(lengths) else compact.NO_IDS
    made.sequence_ids = np.concatenate((made.ids, first))
    parents[row[C["id"]]] = made
    return made


def choices_of(row: Row) -> list[tuple[Ids, Any]]:
    """(completion ids, logprobs) of each choice."""
    ids, floats = ids_of(row[C["completion_ids"]]), floats_of(row[C["logprobs"]])
    found, i, j = [], 0, 0
    for n, m in ids_of(row[C["lengths"]]).reshape(-1, 2).tolist():
        found.append((ids[i : i + n], floats[j : j + m]))
        i, j = i + n, j + m
    return found


def call_public(row: Row, made: Whole, *, tokens: bool) -> CallRecord:
    finish = load(row[C["finish"]], [])
    choices = choices_of(row) if tokens else []
    return CallRecord(
        id=row[C["id"]], episode=row[C["eid"]].split("/", 1)[1], number=row[C["number"]], at=row[C["ts"]], seconds=row[C["seconds"]],
        dialect=row[C["dialect"]], model=row[C["model"]], adapter=row[C["adapter"]], trained=row[C["trained"]], status=row[C["status"]], outcome=row[C["outcome"]],
        trainable=row[C["trainable"]], untrainable_reason=row[C["reason"]], sampling=load(row[C["sampling"]], {}), messages=made.messages,
        tools=made.tools, reply=load(row[C["reply"]], []), prompt_tokens=row[C["prompt_tokens"]],
        completion_tokens=row[C["completion_tokens"]], prompt_ids=made.ids.tolist() if tokens else None,
        completion_ids=[ids.tolist() for ids, _ in choices] if tokens else None,
        logprobs=[values.tolist() for _, values in choices] if tokens else None,
        finish_reason=finish[0] if finish else None, error=row[C["error"]], parent=row[C["parent"]],
    )  # fmt: skip


REWARD_COLUMNS = "eid, call, name, source, value, reason, idem, meta, ts"


def reward_public(row: Row, adapter: str | None) -> Reward:
    """From ``REWARD_COLUMNS``."""
    eid, call, name, source, value, reason, idem, meta, at = row
    return Reward(
        episode=eid.split("/", 1)[1], call=call, name=name, source=source, value=value, reason=reason, key=idem, meta=load(meta, {}), at=at,
        adapter=adapter,
    )  # fmt: skip


def cursor_of(started: float, eid: str) -> str:
    return base64.urlsafe_b64encode(f"{started!r}|{eid}".encode()).decode().rstrip("=")


def parse_cursor(cursor: str) -> tuple[float, str]:
    """Raises ``ValueError`` for one that is not ours."""
    started, _, eid = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().partition("|")
    return float(started), eid
