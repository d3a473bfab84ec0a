"""Which adapter and which engine serve a call."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from zlib import crc32

from slipstream_proxy.data.call.step import CallStep
from slipstream_proxy.data.wire.errors import RequestRefused

if TYPE_CHECKING:
    from slipstream_proxy.data.call.parts import Call
    from slipstream_proxy.data.call.result import CallResult
    from slipstream_proxy.data.engines.control_link import ControlLink
    from slipstream_proxy.data.engines.hold import Holding
    from slipstream_proxy.data.engines.live import LiveView
    from slipstream_proxy.data.episode.pins import EpisodePins
    from slipstream_proxy.data.episode.running import Pinned, RunningEpisode


PROMPT_MESSAGES = 2
"""Messages at the beginning of a conversation that runs of one task share: the instructions and what is asked."""
ROUTER_ASTRAY_STATUSES = (404, 500, 502, 503)
"""With these a router says that it found no engine, or the engine that it found had not the adapter."""


def _gone(name: str, state: str, at: float) -> str:
    since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))
    model = name.rpartition("@")[0]
    return f"{name} has been {state.replace('_', ' ')} since {since} and is no longer served: request {model}"


class AdapterChoice(CallStep):
    """Waits while the trainer has the engine, pins the episode to an adapter, and finds the engines that have it."""

    def __init__(self, live: LiveView, holding: Holding, pins: EpisodePins, link: ControlLink) -> None:
        self._live, self._holding, self._pins, self._link = live, holding, pins, link
        self._uses: dict[str, str] = {}
        """Call under way → its adapter, which no pin keeps in the engine."""

    def choose(self, call: Call) -> bool:
        episode, target = call.asked.episode, call.asked.target
        assert episode is not None
        if target.kind == "upstream":
            call.route.lead_to([target.upstream or ""])
            return True
        if self._live.held_until is not None and self._holding.on:
            self._holding.wait(call.go_on, call.refuse)
            return False
        if target.kind == "trained" and not self._pin(call, episode):
            return False
        call.route.lead_to(self._servers(call, call.route.adapter))
        if not call.route.servers:
            self._go_without(call)
        if not call.route.servers:
            down = self._live.has(call.route.adapter)
            gone = self._live.gone.get(call.route.adapter)
            if gone is not None and call.route.pin is None and not down:
                raise RequestRefused(404, _gone(call.route.adapter, *gone), param="model")
            why = "no engine is up at the moment" if down else "no engine has this model loaded at the moment"
            raise RequestRefused(503, why, retry_after=1.0)
        self._use(call)
        return True

    def _servers(self, call: Call, adapter: str) -> list[str]:
        """Near the episode's other calls; at its beginning, near other runs of its task or prompt."""
        episode = call.asked.episode
        assert episode is not None
        task = episode.task or ""
        if not episode.engine and not task and call.asked.turn is not None:
            task = str(crc32(b"".join(call.asked.turn.messages[:PROMPT_MESSAGES])))
        return self._live.servers(adapter, episode.id, task, episode.engine)

    def _pin(self, call: Call, episode: RunningEpisode) -> bool:
        """False: not yet."""
        model = call.asked.target.model
        pin = self._pins.known(episode, model)
        new = call.asked.tags.origin == "new"
        if pin is None and call.asked.is_recorded(self._live.forgotten):
            pin = self._pins.make(episode, model, call.go_on, new=new)
        elif pin is None and (pin := call.route.pin) is None:
            self._look_up(call, episode, model, new=new)
            return False
        if pin is None:
            return False
        call.route.pin_to(pin)
        return True

    def _look_up(self, call: Call, episode: RunningEpisode, model: str, *, new: bool) -> None:
        def go_on(found: Pinned) -> None:
            call.route.pin_to(found)
            call.go_on()

        self._pins.look_up(episode, model, go_on, new=new)

    def _use(self, call: Call) -> None:
        """What no pin keeps in the engine stays there until the call has its reply."""
        adapter = call.route.adapter
        if "@" in adapter and (call.route.pin is None or not call.asked.is_recorded(self._live.forgotten)):
            self._uses[call.asked.id] = adapter
            self._link.use(self._uses.values())

    def ended(self, call: CallResult, status: int, outcome: str) -> None:
        if self._uses and self._uses.pop(call.asked.id, None) is not None:
            self._link.use(self._uses.values())

    def _moved(self, call: Call, episode: RunningEpisode, pin: Pinned) -> Pinned:
        model = call.asked.target.model
        if call.asked.is_recorded(self._live.forgotten):
            return self._pins.move(episode, model, pin)
        return self._pins.moved(model, pin)

    def _go_without(self, call: Call) -> bool:
        """Its adapter's engines are down. Where another is up that takes no adapters, the episode moves, unseen."""
        if call.route.pin is None or call.asked.episode is None or "@" not in call.route.adapter:
            return False
        name = self._live.replacement(call.asked.target.model, call.route.adapter)
        servers = self._servers(call, name)
        if name == call.route.adapter or not servers or self._servers(call, call.route.adapter):
            return False
        call.route.move(self._moved(call, call.asked.episode, call.route.pin), servers, 0)
        self._use(call)
        return True

    def rejected(self, call: Call, status: int) -> bool:
        """The engine unloaded the adapter before this worker heard of it: the episode moves, unseen by the client. What
        a router sent to an engine without the adapter, or to none, goes to one that has it.
        """
        route = call.route
        if status in ROUTER_ASTRAY_STATUSES and self._live.is_router(route.upstream) and len(route.servers) > 1:
            route.lead_past(route.upstream)
            return True
        if status == 503:
            return self._go_without(call)
        if status != 404 or call.route.pin is None or call.asked.episode is None or "@" not in call.route.adapter:
            return False
        moved = self._moved(call, call.asked.episode, call.route.pin)
        servers = self._servers(call, moved.adapter)
        if moved.adapter == call.route.adapter or not servers:
            return False
        call.route.move(moved, servers, call.route.tries - 1)
        self._use(call)
        return True
