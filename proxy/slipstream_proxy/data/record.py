"""What of a call goes to the spool."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from slipstream_proxy.dialects.base import null_ids, null_logprobs
from slipstream_proxy.segments import common_head

if TYPE_CHECKING:
    from slipstream_proxy.data.callstate import CallState
    from slipstream_proxy.data.episodes import Episode

log = logging.getLogger(__name__)

Redact = Callable[[dict[str, Any]], dict[str, Any]]

_NOTHING: Final[dict[str, Any]] = {}
_THROUGH_CHAT: Final = {"route": "chat"}
"""Request and reply are recorded as the chat completion that they were to the engine."""


class Common:
    """What the heads of one episode's calls have alike, as ``text``; the rest says which calls those are."""

    __slots__ = ("client", "dialect", "episode", "note", "origin", "pin", "route", "split", "tags", "task", "text", "through_chat", "upstream")  # fmt: skip

    def __init__(self, call: CallState, note: str | None, tags: dict[str, str] | None = None) -> None:
        """``tags``: redacted ones, in place of the episode's."""
        episode, key, route, pin = call.episode, call.key, call.route, call.pin
        assert episode is not None
        assert key is not None
        self.route, self.pin, self.client, self.upstream = route, pin, call.client, call.upstream
        self.dialect, self.origin, self.note = call.dialect, call.tags.origin, note
        self.through_chat = call.back is not None
        self.episode, self.task, self.tags = episode.id, episode.task, episode.tags
        self.split = call.tags.split or episode.split
        members = {
            "key": key.id,
            "episode": episode.id,
            "task": episode.task,
            "split": self.split,
            "tags": episode.tags if tags is None else tags,
            "model": call.client,
            "trained": route.model if route.kind == "trained" else None,
            "adapter": call.adapter or None,
            "arm": pin.arm if pin else "live",
            "pin": pin.how if pin else "local",
            "dialect": call.dialect.name,
            "upstream": call.upstream,
            "external": route.kind == "upstream",
            "origin": call.tags.origin,
            "grouped": episode.task is not None,
            "trust_sampling": route.trust,
            "note": note,
            "extra": _THROUGH_CHAT if self.through_chat else _NOTHING,
        }
        self.text = common_head(members)

    def fits(self, call: CallState, note: str | None) -> bool:
        episode = call.episode
        return (
            episode is not None
            and self.route is call.route
            and self.pin is call.pin
            and self.tags is episode.tags
            and self.dialect is call.dialect
            and self.through_chat == (call.back is not None)
            and self.client == call.client
            and self.upstream == call.upstream
            and self.origin == call.tags.origin
            and self.episode == episode.id
            and self.task == episode.task
            and self.split == (call.tags.split or episode.split)
            and self.note == note
        )


class Commons:
    """Gives episodes their ``common``, and takes it back from those that got it long ago: it is larger than they are."""

    def __init__(self, limit: int = 1024) -> None:
        self._latest: list[Episode | None] = [None] * limit
        self._at = 0

    def give(self, episode: Episode, common: Common) -> None:
        before = self._latest[self._at]
        if before is not None:
            before.common = None
        self._latest[self._at] = episode
        self._at = (self._at + 1) % len(self._latest)
        episode.common = common


def make_head(
    call: CallState, status: int, outcome: str, note: str | None, tags: dict[str, str] | None = None
) -> tuple[bytes, dict[str, Any]]:
    """A ``CallHead`` for the spool: what the episode's calls have in common, and what is this one's."""
    episode, request = call.episode, call.request
    assert episode is not None
    common = episode.common
    if tags is not None:
        common = Common(call, note, tags)
    elif common is None or not common.fits(call, note):
        common = Common(call, note)
        call.plane.commons.give(episode, common)
    started, first, idempotency = call.started, call.first, request.idempotency
    head: dict[str, Any] = {
        "id": call.id,
        "stream": call.stream,
        "at": started,
        "seconds": (call.replied or time.time()) - started,
        "first_byte": first - started if first is not None else None,
        "status": status,
        "outcome": outcome,
        "done": call.tags.done,
        "attempt": request.attempt,
        "body_hash": call.bodyhash,
        "idempotency_key": idempotency.decode("latin-1")[:200] if idempotency is not None else None,
    }
    return common.text, head


def make_texts(
    redact: Redact | None, request: bytes, reply: bytes, tags: dict[str, str] | None = None
) -> tuple[bytes, bytes, str | None]:
    """Request and reply as they may be stored. What was redacted loses its token ids, because they say the same in other signs.

    ``tags`` are changed where they lie; the function sees each as ``tag.<name>``.
    """
    if redact is None:
        return request, reply, None
    tags = {} if tags is None else tags
    before = {"request": request.decode("utf-8", "surrogateescape"), "reply": reply.decode("utf-8", "surrogateescape")}
    try:
        after = redact({**before, **{f"tag.{name}": value for name, value in tags.items()}})
        texts = [_text(after[name]) for name in before]
        tags.update({name: _text(after.get(f"tag.{name}", value)).decode() for name, value in tags.items()})
    except BaseException as e:  # a sys.exit() in it must not cost the client its reply either
        log.error("redaction failed, the call is stored without text: %s", type(e).__name__)
        tags.clear()
        return b"{}", b"", "redaction failed"
    if all(after[name] == text for name, text in before.items()):
        return request, reply, None
    return texts[0], null_ids(null_logprobs(texts[1]) or b""), "redacted"


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError("what is redacted must stay a str")
    try:
        return value.encode("utf-8", "surrogateescape")  # bytes of the request that were no UTF-8
    except UnicodeEncodeError:
        return value.encode("utf-8", "replace")
