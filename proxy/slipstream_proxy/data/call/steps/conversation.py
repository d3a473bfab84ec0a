"""Which episode a call belongs to, and what the worker remembers of it for the next call."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from slipstream_proxy.data.call.payload import body_hash
from slipstream_proxy.data.call.step import CallStep
from slipstream_proxy.data.observe.metrics import SPLIT_NAMES, quoted
from slipstream_proxy.data.wire.identity import SessionNames, hint_kind, name_session, read_tags
from slipstream_proxy.dialects.base import Turn
from slipstream_proxy.parse_weight import too_heavy

if TYPE_CHECKING:
    from slipstream_proxy.data.call.parts import Call
    from slipstream_proxy.data.call.payload import Payload
    from slipstream_proxy.data.call.result import CallResult
    from slipstream_proxy.data.episode.memory import EpisodeMemory
    from slipstream_proxy.data.observe.metrics import WorkerMetrics
    from slipstream_proxy.redaction import Redaction

log = logging.getLogger(__name__)


class Conversation(CallStep):
    """Reads the tags and finds the episode."""

    def __init__(
        self,
        episodes: EpisodeMemory,
        sessions: SessionNames,
        metrics: WorkerMetrics,
        *,
        traceparent: bool,
        redaction: Redaction | None = None,
    ) -> None:
        """``traceparent``: a trace names an episode (``identity.traceparent``)."""
        self._metrics = metrics
        self._episodes = episodes
        self._sessions = sessions
        self._traceparent = traceparent
        self._redaction = redaction

    def request(self, call: Call) -> bool:
        request, payload, key = call.asked.request, call.asked.payload, call.asked.key
        assert key is not None
        tags = request.tags
        metadata = payload is not None and isinstance(payload.get("metadata"), dict)
        if tags is None or metadata:
            tags = read_tags(
                request.ours,
                request.prefix,
                call.asked.suffix,
                payload,
                traceparent=self._traceparent,
                redaction=self._redaction,
            )
            hint_kind(tags, request.headers)
            if tags.episode is None:
                name_session(tags, self._sessions.in_headers(request.headers))
            if tags.episode is not None and not metadata and not tags.doubtful:
                request.tags = tags
            elif tags.episode is None and payload is not None:
                name_session(tags, self._sessions.in_body(payload))
        named = tags.episode is not None and not tags.doubtful
        turn = _turn(call, payload) if not named and payload is not None else None
        hashed = body_hash(call.route.body)
        if turn is not None and (request.attempt or tags.doubtful):
            again = self._episodes.again(key.id, hashed)
            if again is not None or not tags.doubtful:
                tags.episode, tags.origin, tags.session = again, "continued", None
        call.asked.belong(tags, turn, hashed, self._episodes.of(key.id, tags, turn, payload))
        if (field := self._episodes.take_split()) is not None:
            self._metrics.add(SPLIT_NAMES, f'field="{quoted(field)}"')
            log.warning("a name in %s stands for several runs: each conversation under it is an episode", field)
        return False

    def event(self, call: Call, event: bytes) -> bytes | None:
        speech = call.reply.speech
        if speech is not None:
            speech.hear(event)
        return event

    def replied(self, call: Call, outcome: str, body: bytes) -> None:
        episode, turn = call.asked.episode, call.asked.turn
        if outcome != "ok" or episode is None:
            return
        if call.asked.tags.done:
            self._episodes.end(episode)
        if turn is not None and not episode.done:
            speech = call.reply.speech
            self._episodes.remember(episode, turn, _said(call, body) if speech is None else speech.turn())

    def ended(self, call: CallResult, status: int, outcome: str) -> None:
        asked = call.asked
        if outcome != "ok" and asked.turn is not None and asked.episode is not None:
            self._episodes.failed(asked.episode.name[0], asked.body_hash, asked.episode)


def _said(call: Call, body: bytes) -> Turn:
    """What a reply says that is read as a whole."""
    stream = call.reply.stream
    # the engine's whole reply has log-probabilities beside what is said
    said = body if stream and call.route.back is None else b"".join((*call.reply.kept, call.reply.shown))
    heavy = not stream and too_heavy(said)
    return Turn(has_reply=True) if heavy else call.asked.dialect.said(said, stream=stream)


def _turn(call: Call, payload: Payload) -> Turn:
    try:
        return call.asked.dialect.turn(payload)
    except Exception as e:  # a body that the engine will refuse, too
        log.debug("no conversation can be read: %s", e)
        return Turn()
