"""Writes the live state: what each trained model's new episodes get, and which engines are up."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Final

from slipstream.contract import AdapterState
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.engines.live import LiveState, ModelLive
from slipstream_proxy.control.engines.pool import EnginePool

if TYPE_CHECKING:
    from slipstream_proxy.control.adapters.trials import GateTrials

MAX_GONE_VERSIONS: Final = 256
S = AdapterState


class LivePublisher:
    def __init__(self, registry: AdapterRegistry, trials: GateTrials, engines: EnginePool, live: LiveState) -> None:
        self.registry, self.trials, self.engines, self.live = registry, trials, engines, live
        engines.watchers.append(self.publish)

    def publish(self) -> None:
        """Send the data planes what is true now. Nothing happens if nothing changed."""
        r = self.registry
        t = self.trials
        models = {m: ModelLive(r.base, r.live(m), t.arms(m), r.kept_from(m), t.first(m)) for m in r.models}
        self.live.set(models, self.engines.public(), self._gone(), asks=self.engines.replays)

    def _gone(self) -> dict[str, tuple[str, float]]:
        """The newest versions that serve no more → state, and since when. A retired one ended when the next went
        live.
        """
        newest = sorted(self.registry.items.values(), key=lambda a: a.version)[-MAX_GONE_VERSIONS:]
        began = sorted((a.model, a.decided) for a in newest if a.accepted and a.decided)
        found = {}
        for a in newest:
            at = a.decided or a.created
            if a.state == S.RETIRED and a.accepted:
                after = bisect.bisect_right(began, (a.model, at))
                at = began[after][1] if after < len(began) and began[after][0] == a.model else at
            if a.state in (S.RETIRED, S.ROLLED_BACK, S.REFUSED):
                found[a.name] = (a.state.value, at)
        return found
