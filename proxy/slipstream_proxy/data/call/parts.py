"""A call on its way, in three parts: what was asked, where it goes, and what came back (``reply.py``).

Each part is written by its own methods alone. Steps call these, and read what they like.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from slipstream_proxy.data.call.reply import EngineReply
from slipstream_proxy.data.engines.models import ModelTarget
from slipstream_proxy.data.episode.ids import new_id_bytes
from slipstream_proxy.data.wire.identity import Tags
from slipstream_proxy.data.wire.receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Collection

    from slipstream_proxy.data.call.payload import Payload
    from slipstream_proxy.data.episode.prompts import Prefixes
    from slipstream_proxy.data.episode.running import Pinned, RunningEpisode
    from slipstream_proxy.data.wire.errors import RequestRefused
    from slipstream_proxy.data.wire.receiver import Sent
    from slipstream_proxy.data.wire.request import RequestHead
    from slipstream_proxy.data.wire.sink import Sink
    from slipstream_proxy.dialects.base import Hide, ReplyTranslator, Turn
    from slipstream_proxy.keys import Key

_now: Final[Callable[[], float]] = time.time
_NO_TAGS: Final = Tags()
_NO_TARGET: Final = ModelTarget("base", "")

Names = tuple[bytes, bytes, bytes, bytes, bytes, bytes]
"""The engine's and the client's name of a model: as compact JSON member, as spaced one, and as text without quotes."""


class AskedCall:
    """What was asked, by whom, and of which model. Complete when the ``request`` hooks have run."""

    def __init__(self, request: RequestHead) -> None:
        self.request, self.dialect = request, request.dialect
        self.started = _now()
        """Seconds since the epoch."""
        self.id_bytes = new_id_bytes(self.started)
        self.id = self.id_bytes.decode("ascii")
        self.key: Key | None = None
        self.suffix: str | None = None
        """What stands behind the key's first colon: its tags."""
        self.payload: Payload | None = None
        """The body, read; None: it is no JSON object, or too heavy to be read."""
        self.tags = _NO_TAGS
        self.turn: Turn | None = None
        """The conversation, of a call that does not name its episode."""
        self.body_hash = b""
        self.episode: RunningEpisode | None = None
        self.model = ""
        """The client's name for it."""
        self.target: ModelTarget = _NO_TARGET

    @property
    def split(self) -> str:
        """``off``: nothing of the call is stored."""
        if self.tags.captured is False:
            return "off"
        return self.tags.split or (self.episode.split if self.episode is not None else "")

    def is_recorded(self, forgotten: Collection[str]) -> bool:
        """Whether the store gets it. ``forgotten``: as ``LiveView.forgotten``."""
        return self.split != "off" and (self.episode is None or not self.episode.is_among(forgotten))

    def admit(self, key: Key, suffix: str | None, payload: Payload | None) -> None:
        self.key, self.suffix, self.payload = key, suffix, payload

    def forget_payload(self) -> None:
        """Its reply is being relayed: it is not asked for again."""
        self.payload = None

    def belong(self, tags: Tags, turn: Turn | None, body_hash: bytes, episode: RunningEpisode) -> None:
        self.tags, self.turn, self.body_hash, self.episode = tags, turn, body_hash, episode

    def mean(self, model: str, target: ModelTarget) -> None:
        self.model, self.target = model, target


class CallRoute:
    """Where a call goes, and as what: the request as the engine gets it, and what has to be undone in the reply."""

    def __init__(self, body: bytes, path: str) -> None:
        self.body, self.path = body, path
        """The body is the client's until the call is sent."""
        self.payload: Payload | None = None
        """The body as it goes to the engine; None: it goes as it came."""
        self.note: str | None = None
        """Why the capture is not whole."""
        self.hide: Hide | None = None
        self.prefixes: Prefixes | None = None
        self.back: ReplyTranslator | None = None
        """Asked as a chat completion: this makes the client's format of the reply."""
        self.names: Names | None = None
        self.adapter = ""
        """The engine's name of the model."""
        self.pin: Pinned | None = None
        self.servers: list[str] = []
        """Engines that can serve it, the best first."""
        self.upstream = ""
        """The one that it went to."""
        self.tries = 0
        self.sent: Sent | None = None
        self.forwarded = 0.0
        """Seconds since the epoch."""

    def ask(
        self,
        payload: Payload | None,
        note: str | None,
        hide: Hide | None = None,
        back: ReplyTranslator | None = None,
        prefixes: Prefixes | None = None,
    ) -> None:
        """What the engine is asked, and what of its reply the client must not see."""
        self.payload, self.note, self.hide, self.back, self.prefixes = payload, note, hide, back, prefixes

    def ask_as_it_came(self, asked: AskedCall, note: str, *, again: bool = False) -> None:
        """To its own route, in its own format. ``again``: in place of the try before."""
        self.payload, self.back, self.note, self.path = asked.payload, None, note, asked.request.path
        if again:
            self.tries -= 1

    def forget_payload(self) -> None:
        """Its reply is being relayed: it is not sent again. ``body`` has what was sent."""
        self.payload = None

    def ask_at(self, path: str) -> None:
        self.path = path

    def name(self, adapter: str) -> None:
        self.adapter = adapter

    def rename(self, names: Names) -> None:
        self.names = names

    def pin_to(self, pin: Pinned) -> None:
        self.pin, self.adapter = pin, pin.adapter

    def lead_to(self, servers: list[str]) -> None:
        self.servers = servers

    def lead_past(self, server: str) -> None:
        """Straight to the others, as if it had not been asked."""
        self.servers, self.tries = [url for url in self.servers if url != server], 0

    def move(self, pin: Pinned, servers: list[str], tries: int) -> None:
        """To another adapter. ``tries``: those that count."""
        self.pin, self.adapter, self.servers, self.tries = pin, pin.adapter, servers, tries

    def next(self) -> str:
        """The engine of the next try."""
        self.upstream = self.servers[min(self.tries, len(self.servers) - 1)]
        self.tries += 1
        return self.upstream

    def same_again(self) -> None:
        """The last try met a connection that was closed already, and does not count."""
        self.tries -= 1
        if self.upstream not in self.servers:
            self.servers = [self.upstream, *self.servers]

    def write(self, body: bytes) -> None:
        """``body``: as orjson wrote it, which keeps eight times its bytes. A copy of it has none to spare."""
        self.body = b"".join([body, b""])

    def forward(self, now: float) -> None:
        self.forwarded = now

    def hold(self, sent: Sent | None) -> None:
        """``sent``: the request that is under way."""
        self.sent = sent


class Call(Receiver):
    """A call on its way, as its steps see it."""

    def __init__(self, request: RequestHead, body: bytes, sink: Sink) -> None:
        self.asked = AskedCall(request)
        self.route = CallRoute(body, request.path)
        self.reply = EngineReply()
        self.sink = sink

    def share(self) -> str:
        return self.asked.key.id if self.asked.key is not None else ""

    def go_on(self) -> None:
        """What was waited for is there."""
        raise NotImplementedError

    def refuse(self, e: RequestRefused) -> None:
        """The client gets this error, unless it has its answer."""
        raise NotImplementedError

    def end(self) -> None:
        """The client has its answer, or is gone."""
        raise NotImplementedError

    def client_gone(self) -> None:
        """The client closed: the engine stops, and what there is of the call is recorded."""
        raise NotImplementedError

    def response_fields(self) -> bytes:
        """The header lines for the client: the engine's and ours."""
        raise NotImplementedError
