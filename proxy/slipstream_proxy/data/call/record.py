"""What of a call goes to the spool."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import orjson

from slipstream.contract import tag_text
from slipstream_proxy.data.episode.running import CommonHead
from slipstream_proxy.data.observe.metrics import UNCAPTURED_METRIC
from slipstream_proxy.data.wire.http1 import digits
from slipstream_proxy.data.wire.identity import text_of
from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.log.records import Kind
from slipstream_proxy.log.segments import common_head
from slipstream_proxy.log.spool import BOOT_ID
from slipstream_proxy.redaction import Redaction, make_texts

if TYPE_CHECKING:
    from slipstream_proxy.data.call.result import CallResult
    from slipstream_proxy.data.episode.prompts import PromptMemory
    from slipstream_proxy.data.episode.running import RunningEpisode
    from slipstream_proxy.data.observe.metrics import WorkerMetrics
    from slipstream_proxy.log.spool import Done, SpoolWriter

log = logging.getLogger(__name__)

_now: Final[Callable[[], float]] = time.time
_monotonic: Final[Callable[[], float]] = time.monotonic
_dumps: Final[Callable[[object], bytes]] = orjson.dumps
_CALL: Final = Kind.CALL
_NOTHING: Final[dict[str, str]] = {}
_THROUGH_CHAT: Final = {"route": "chat"}
"""Request and reply are recorded as the chat completion that they were to the engine."""
_times: Final[dict[str, float | None]] = {}
"""Of the record that is just being made."""


class HeadShape:
    """What the heads of an episode's latest calls have alike, but for the episode's id: other episodes of a task, a key
    and a model have it, too. The rest says which calls those are.
    """

    __slots__ = (
        *("_after", "_before", "attempt", "dialect", "done", "key", "kind", "model", "note", "origin", "outcome"),
        *("pin", "split", "status", "stream", "tags", "target", "task", "through_chat", "upstream"),
    )

    def __init__(
        self,
        call: CallResult,
        episode: RunningEpisode,
        status: int,
        outcome: str,
        note: str | None,
        tags: dict[str, str] | None = None,
    ) -> None:
        """``tags``: redacted ones, in place of the episode's."""
        self.task, self.tags = episode.task, episode.tags
        asked, said = call.asked, call.asked.tags
        key = self.key = asked.key
        target = self.target = asked.target
        pin = self.pin = call.route.pin
        assert key is not None
        self.dialect, self.through_chat, self.split = asked.dialect, call.route.back is not None, asked.split
        self.model, self.upstream, self.attempt = call.model, call.route.upstream, asked.request.attempt
        self.done, self.kind, self.origin = said.done, said.kind, said.origin
        self.stream, self.status, self.outcome, self.note = call.reply.stream, status, outcome, note
        before: dict[str, object] = {
            "boot": BOOT_ID,
            "stream": self.stream,
            "status": status,
            "outcome": outcome,
            "done": said.done,
            "attempt": self.attempt,
            "key": key.id,
        }
        members: dict[str, object] = {
            "task": episode.task,
            "split": self.split,
            "tags": episode.tags if tags is None else tags,
            "model": call.model,
            "trained": target.model if target.kind == "trained" else None,
            "adapter": call.adapter or None,
            "arm": pin.arm if pin else "live",
            "chances": pin.chances if pin else "",
            "pin": pin.how if pin else "local",
            "dialect": asked.dialect.name,
            "upstream": self.upstream,
            "external": target.kind == "upstream",
            "origin": said.origin,
            "grouped": episode.task is not None,
            "trust_sampling": target.trust,
            "note": note,
            "extra": _THROUGH_CHAT if self.through_chat else _NOTHING,
        }
        if said.kind:
            members["kind"] = said.kind
        self._before, self._after = common_head(before), common_head(members)[1:]

    def of(self, episode: RunningEpisode) -> CommonHead:
        return LatestHead(self, episode.id, b"%b,%b,%b" % (self._before, _episode_member(episode.id), self._after))

    def fits(self, call: CallResult, episode: RunningEpisode, status: int, outcome: str, note: str | None) -> bool:
        """Whether it is what such a call's head begins with."""
        asked, route = call.asked, call.route
        return (
            self.pin is route.pin
            and self.target is asked.target
            and (self.tags is episode.tags or self.tags == episode.tags)
            and self.status == status
            and self.stream == call.reply.stream
            and self.attempt == asked.request.attempt
            and self.done == asked.tags.done
            and self.dialect is asked.dialect
            and self.through_chat == (route.back is not None)
            and self.model == call.model
            and self.upstream == route.upstream
            and self.outcome == outcome
            and self.note == note
            and self.task == episode.task
            and self.split == asked.split
            and self.origin == asked.tags.origin
            and self.kind == asked.tags.kind
            and self.key is asked.key
        )


def _episode_member(name: str) -> bytes:
    return common_head({"episode": name})[1:]


class LatestHead(CommonHead):
    """Of one episode."""

    __slots__ = ("episode", "shape")

    def __init__(self, shape: HeadShape, episode: str, text: bytes) -> None:
        super().__init__(text)
        self.shape, self.episode = shape, episode


class Commons:
    """Gives episodes their ``common``, and takes it back from the older ones: it is larger than they are."""

    def __init__(self, limit: int = 1024) -> None:
        self._latest: list[RunningEpisode | None] = [None] * limit
        self._at = 0

    def give(self, episode: RunningEpisode, common: CommonHead) -> None:
        before = self._latest[self._at]
        if before is not None:
            before.common = None
        self._latest[self._at] = episode
        self._at = (self._at + 1) % len(self._latest)
        episode.common = common


class Recorder:
    """Writes a worker's calls to its spool. ``redact`` changes what is stored, and nothing of what the client gets."""

    def __init__(
        self, spool: SpoolWriter, metrics: WorkerMetrics, prompts: PromptMemory, redact: Redaction | None = None
    ) -> None:
        self._spool, self._metrics, self._redact = spool, metrics, redact
        self._prompts = prompts
        self._commons = Commons()
        self._shape: HeadShape | None = None
        """Of the call before."""

    def record(
        self,
        call: CallResult,
        status: int,
        outcome: str,
        request: bytes,
        reply: bytes,
        done: Done | None,
        *,
        alone: bool = False,
    ) -> None:
        """``done`` is called when the record is durable or given up. ``split: off`` is counted and not stored.
        ``alone``: as ``SpoolWriter.append``. Never raises.
        """
        asked, route, episode = call.asked, call.route, call.asked.episode
        if route.prefixes is not None and episode is not None:
            reply = self._prompts.whole(episode, route.prefixes, reply, stream=call.reply.stream)
        if episode is None or asked.key is None or asked.split == "off":
            if asked.split == "off":
                by = "capture" if asked.tags.captured is False else "split"
                by = "judge" if by == "capture" and asked.tags.kind == "judge" else by
                self._metrics.add(UNCAPTURED_METRIC, f'by="{by}"')
            if done:
                done(True)
            return
        try:
            note, tags = route.note, None
            if self._redact is not None:
                tags = dict(episode.tags)
                spoken = BY_NAME["chat"] if route.back is not None else asked.dialect
                events = spoken if call.reply.stream else None
                request, reply, redacted = make_texts(self._redact, request, reply, tags, stream=events)
                tags = {name: tag_text(value) for name, value in tags.items()}
                note = redacted or note
            known_as = asked.request.idempotency
            idempotency = known_as.decode("latin-1")[:200] if known_as is not None else None
            if self._redact is not None and known_as is not None and idempotency is not None:
                idempotency = self._redact.id("idempotency_key", text_of(known_as), idempotency)
            common = self._common(call, episode, status, outcome, note, tags)
            head = make_head(call, common, len(request), idempotency)
        except Exception as e:
            log.exception("a call could not be recorded")
            self._spool.give_up(done, e)
            return
        self._spool.append(_CALL, head, request, reply, done, alone=alone)

    def _common(
        self,
        call: CallResult,
        episode: RunningEpisode,
        status: int,
        outcome: str,
        note: str | None,
        tags: dict[str, str] | None,
    ) -> bytes:
        if tags is not None:
            return HeadShape(call, episode, status, outcome, note, tags).of(episode).text
        common, shape = episode.common, self._shape
        if isinstance(common, LatestHead) and common.episode == episode.id:
            shape = common.shape
            if shape.fits(call, episode, status, outcome, note):
                return common.text
        if shape is None or not shape.fits(call, episode, status, outcome, note):
            shape = self._shape = HeadShape(call, episode, status, outcome, note)
        common = shape.of(episode)
        self._commons.give(episode, common)
        return common.text


def make_head(call: CallResult, common: bytes, request_bytes: int, idempotency: str | None) -> bytes:
    """A whole ``CallHead`` as JSON. ``common``: what other calls' heads begin with, without the closing brace."""
    asked, first = call.asked, call.reply.first
    times = _times
    times["at"] = asked.started
    times["seconds"] = (call.reply.replied or _now()) - asked.started
    times["first_byte"] = first - asked.started if first is not None else None
    times["tick"] = _monotonic()
    size, more, own, hashed = digits(request_bytes), b"", asked.id_bytes, asked.body_hash
    if idempotency is not None:
        more = b",%b" % common_head({"idempotency_key": idempotency})[1:]
    rest = _dumps(times)[1:]
    return b'%b,"id":"%b","body_hash":"%b","request_bytes":%b%b,%b' % (common, own, hashed, size, more, rest)
