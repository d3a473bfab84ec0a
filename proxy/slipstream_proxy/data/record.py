"""What of a call goes to the spool."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from slipstream_proxy.dialects.base import null_ids, null_logprobs

if TYPE_CHECKING:
    from slipstream_proxy.data.callstate import CallState

log = logging.getLogger(__name__)

Redact = Callable[[dict[str, Any]], dict[str, Any]]

_NOTHING: dict[str, Any] = {}
_THROUGH_CHAT = {"route": "chat"}
"""Request and reply are recorded as the chat completion that they were to the engine."""


def make_head(call: CallState, status: int, outcome: str, note: str | None) -> dict[str, Any]:
    """A ``CallHead`` as a dict (building the class itself takes twice as long)."""
    episode, tags, key, route = call.episode, call.tags, call.key, call.route
    assert episode is not None
    assert key is not None
    pin, idempotency = call.pin, call.request.idempotency
    return {
        "id": call.id,
        "key": key.id,
        "episode": episode.id,
        "task": episode.task,
        "split": tags.split or episode.split,
        "tags": episode.tags,
        "model": call.client,
        "trained": route.model if route.kind == "trained" else None,
        "adapter": call.adapter or None,
        "arm": pin.arm if pin else "live",
        "pin": pin.how if pin else "local",
        "dialect": call.dialect.name,
        "stream": call.stream,
        "at": call.started,
        "seconds": time.time() - call.started,
        "first_byte": call.first - call.started if call.first is not None else None,
        "status": status,
        "outcome": outcome,
        "upstream": call.upstream,
        "external": route.kind == "upstream",
        "origin": tags.origin,
        "grouped": episode.task is not None,
        "done": tags.done,
        "attempt": call.request.attempt,
        "body_hash": call.bodyhash,
        "idempotency_key": idempotency.decode("latin-1")[:200] if idempotency is not None else None,
        "trust_sampling": route.trust,
        "note": note,
        "extra": _THROUGH_CHAT if call.back is not None else _NOTHING,
    }


def make_texts(redact: Redact | None, request: bytes, reply: bytes) -> tuple[bytes, bytes, str | None]:
    """Request and reply as they may be stored. What was redacted loses its token ids, because they say the same in other signs."""
    if redact is None:
        return request, reply, None
    before = {"request": request.decode("utf-8", "surrogateescape"), "reply": reply.decode("utf-8", "surrogateescape")}
    try:
        after = redact(dict(before))
        texts = [str(after[name]).encode("utf-8", "surrogateescape") for name in ("request", "reply")]
    except Exception as e:
        log.error("redaction failed, the call is stored without text: %s", type(e).__name__)
        return b"{}", b"", "redaction failed"
    if after == before:
        return request, reply, None
    return texts[0], null_ids(null_logprobs(texts[1]) or b""), "redacted"
