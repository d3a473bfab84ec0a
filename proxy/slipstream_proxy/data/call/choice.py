"""Which adapter and which engine serve a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream_proxy.data.call.step import CallStep
from slipstream_proxy.data.wire.errors import RequestRefused

if TYPE_CHECKING:
    from slipstream_proxy.data.call.call import ActiveCall
    from slipstream_proxy.data.engines.hold import Holding
    from slipstream_proxy.data.engines.live import LiveView
    from slipstream_proxy.data.episode.pins import EpisodePins


class AdapterChoice(CallStep):
    """Waits while the trainer has the engine, pins the episode to an adapter, and finds the engines that have it."""

    def __init__(self, live: LiveView, holding: Holding, pins: EpisodePins) -> None:
        self._live, self._holding, self._pins = live, holding, pins

    def choose(self, call: ActiveCall) -> bool:
        episode, target = call.episode, call.target
        assert episode is not None
        if target.kind == "upstream":
            call.servers = [target.upstream or ""]
            return True
        if self._live.held_until is not None and self._holding.on:
            self._holding.wait(call.go_on, call.refuse)
            return False
        if target.kind == "trained":
            pin = self._pins.known(episode, target.model)
            if pin is None:
                pin = self._pins.make(episode, target.model, call.go_on, new=call.tags.origin == "new")
            if pin is None:
                return False
            call.pin = pin
            call.adapter = pin.adapter
        call.servers = self._live.servers(call.adapter, episode.id)
        if not call.servers:
            self._go_without(call)
        if not call.servers:
            down = self._live.has(call.adapter)
            why = "no engine is up at the moment" if down else "no engine has this model loaded at the moment"
            raise RequestRefused(503, why, retry_after=1.0)
        return True

    def _go_without(self, call: ActiveCall) -> bool:
        """Its adapter's engines are down. Where another is up that takes no adapters, the episode moves, unseen."""
        if call.pin is None or call.episode is None or "@" not in call.adapter:
            return False
        name = self._live.replacement(call.target.model, call.adapter)
        servers = self._live.servers(name, call.episode.id)
        if name == call.adapter or not servers or self._live.servers(call.adapter, call.episode.id):
            return False
        call.pin = self._pins.move(call.episode, call.target.model, call.pin)
        call.adapter, call.servers, call.tries = call.pin.adapter, servers, 0
        return True

    def rejected(self, call: ActiveCall, status: int) -> bool:
        """The engine unloaded the adapter before this worker heard of it: the episode moves, unseen by the client."""
        if status == 503:
            return self._go_without(call)
        if status != 404 or call.pin is None or call.episode is None or "@" not in call.adapter:
            return False
        moved = self._pins.move(call.episode, call.target.model, call.pin)
        servers = self._live.servers(moved.adapter, call.episode.id)
        if moved.adapter == call.adapter or not servers:
            return False
        call.pin, call.adapter, call.servers = moved, moved.adapter, servers
        call.tries -= 1
        return True
