"""Versions and where they stand: what is live, what is tried, what is taken back.

``agreeing.py`` keeps the states; ``swap.py`` moves adapters in and out of the engines by them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from slipstream.config import Config
from slipstream.contract import Adapter, AdapterState
from slipstream_proxy.control.agreeing import Mutate, event
from slipstream_proxy.control.problem import Problem
from slipstream_proxy.control.registering import Registering

log = logging.getLogger(__name__)
S = AdapterState


class Adapters(Registering):
    """All methods belong to the event loop."""

    def __init__(self, config: Config, mutate: Mutate) -> None:
        super().__init__(config, mutate)
        self.pins: dict[str, int] = {}
        """Adapter → open episodes, as the store last said."""
        self.swaps = 0
        self.rollbacks = 0
        self.drop: Callable[[str], Awaitable[None]] | None = None
        """Told of an adapter that was rolled back: groups sampled from it must not train."""
        self.swap_seconds: Callable[[float], None] = lambda _: None

    # what there is
    def find(self, which: str) -> Adapter:
        """By full name, or by version number of the one trained model."""
        if which in self.items:
            return self.items[which]
        found = [a for a in self.items.values() if str(a.version) == which]
        if len(found) == 1:
            return found[0]
        if found:
            raise Problem(
                409,
                f"version {which} is of several models",
                field="path.adapter",
                fix=", ".join(sorted(a.name for a in found)),
            )
        raise Problem(404, f"no adapter {which}", field="path.adapter", fix="list them with GET adapters")

    def of(self, model: str, state: AdapterState, items: Mapping[str, Adapter] | None = None) -> Adapter | None:
        """The newest of a model in a state (there is one at most that is live or candidate)."""
        return max(
            (a for a in (self.items if items is None else items).values() if a.model == model and a.state == state),
            key=lambda a: a.version,
            default=None,
        )

    def accepted(self, model: str, items: Mapping[str, Adapter] | None = None) -> str:
        live = self.of(model, S.LIVE, items)
        return live.name if live else self.base

    def live(self, model: str, items: Mapping[str, Adapter] | None = None) -> str:
        """What new episodes get, arms aside."""
        candidate = self.of(model, S.CANDIDATE, items)
        return candidate.name if candidate and self.config.gate.mode == "guard" else self.accepted(model, items)

    def arms(self, model: str) -> list[tuple[str, str, float]]:
        gate, candidate = self.config.gate, self.of(model, S.CANDIDATE)
        if candidate is None or gate.mode == "manual":
            return []
        return (
            [(self.accepted(model), "control", gate.holdout)]
            if gate.mode == "guard"
            else [(candidate.name, "candidate", gate.share)]
        )

    def keep(self) -> dict[str, Adapter]:
        """Adapters that must stay in the engines: those with a part to play, and those that running episodes are pinned to."""
        roles = {S.LIVE, S.CANDIDATE}
        pinned = {n for n, count in self.pins.items() if count > 0 and n not in self.given_up}
        usable = {S.RETIRED, S.ROLLED_BACK}
        return {n: a for n, a in self.items.items() if a.state in roles or (n in pinned and a.state in usable)}

    def servable(self, name: str) -> bool:
        adapter = self.items.get(name)
        return adapter is not None and adapter.state not in (S.REFUSED, S.LOADING) and name not in self.given_up

    def versions(self, model: str) -> tuple[dict[str, int], int]:
        """Adapter → version (base: 0), and the live one's: what staleness is counted from."""
        versions = {
            a.name: a.version
            for a in self.items.values()
            if a.model == model and a.state not in (S.ROLLED_BACK, S.REFUSED)
        }
        versions[self.base] = 0
        return versions, versions.get(self.live(model), 0)

    # changes
    async def loaded(self, adapter: Adapter) -> None:
        """It is in every engine: give it its part by the gate's mode."""
        gate = self.config.gate
        started = self.arrived.get(adapter.name)
        if adapter.numbers.get("forced"):
            await self.accept(adapter, "promoted by hand", {k: v for k, v in adapter.numbers.items() if k != "forced"})
        elif gate.mode == "guard" and gate.holdout == 0:
            await self.accept(adapter, "no gate", adapter.numbers)
        else:
            changed = [adapter.model_copy(update={"state": S.CANDIDATE})]
            if old := self.of(adapter.model, S.CANDIDATE):
                why = {"reason": f"undecided when {adapter.name} came", "decided": time.time()}
                changed.insert(0, old.model_copy(update={"state": S.RETIRED, **why}))
            control = self.accepted(adapter.model)
            await self.change(
                changed, event("adapter", adapter=adapter.name, state="candidate", mode=gate.mode, control=control)
            )
        self.arrived.pop(adapter.name, None)
        self.swaps += 1
        if started is not None:
            self.swap_seconds(time.monotonic() - started)

    async def accept(self, adapter: Adapter, reason: str, numbers: dict[str, Any]) -> Adapter:
        before = self.of(adapter.model, S.LIVE)
        kept = {**adapter.numbers, **numbers, "accepted": True}
        kept.pop("forced", None)
        adapter = adapter.model_copy(
            update={"state": S.LIVE, "reason": reason, "decided": time.time(), "numbers": kept}
        )
        changed = [adapter]
        if before and before.name != adapter.name:
            changed.insert(0, before.model_copy(update={"state": S.RETIRED, "reason": f"{adapter.name} is live"}))
        was = before.name if before else self.base
        said = event("promote", adapter=adapter.name, before=was, reason=reason, numbers=_plain(numbers))
        await self.change(changed, said)
        return adapter

    async def take_back(
        self, adapter: Adapter, reason: str, numbers: dict[str, Any], state: AdapterState = S.ROLLED_BACK
    ) -> Adapter:
        """Rolled back or refused: the last accepted adapter answers new episodes."""
        back = self._last_accepted(adapter) if adapter.state == S.LIVE else None
        adapter = adapter.model_copy(
            update={"state": state, "reason": reason, "decided": time.time(), "numbers": {**adapter.numbers, **numbers}}
        )
        changed = [adapter]
        if back:
            changed.append(back.model_copy(update={"state": S.LIVE, "reason": f"{adapter.name} was taken back"}))
        kind = "rollback" if state == S.ROLLED_BACK else "refused"
        to = self.live(adapter.model, {**self.items, **{a.name: a for a in changed}})
        await self.change(changed, event(kind, adapter=adapter.name, to=to, reason=reason, numbers=_plain(numbers)))
        self.arrived.pop(adapter.name, None)
        self.rollbacks += state == S.ROLLED_BACK
        if self.drop and state == S.ROLLED_BACK:
            await self.drop(adapter.name)
        return adapter

    def _last_accepted(self, than: Adapter) -> Adapter | None:
        older = (
            a for a in self.items.values()
            if a.model == than.model and a.state == S.RETIRED and a.numbers.get("accepted") and self.has_files(a)
        )  # fmt: skip
        return max(older, key=lambda a: a.decided or 0.0, default=None)

    async def promote(self, which: str, reason: str | None) -> Adapter:
        return await self.agree(lambda: self._promote(which, reason))

    async def _promote(self, which: str, reason: str | None) -> Adapter:
        adapter = self.find(which)
        if adapter.state == S.LIVE:
            return adapter
        if adapter.state == S.CANDIDATE:
            return await self.accept(adapter, reason or "promoted by hand", {})
        if adapter.state == S.REFUSED or not self.has_files(adapter):
            raise Problem(
                409, f"{adapter.name} cannot be served: {adapter.reason or 'its files are gone'}", field="path.adapter"
            )
        if adapter.state != S.LOADING:
            self.arrived[adapter.name] = time.monotonic()
        self.given_up.discard(adapter.name)
        self.mine.add(adapter.name)
        adapter = adapter.model_copy(
            update={"state": S.LOADING, "reason": reason, "numbers": {**adapter.numbers, "forced": True}}
        )
        await self.change([adapter])
        return adapter

    async def rollback(self, which: str, reason: str | None) -> Adapter:
        return await self.agree(lambda: self._rollback(which, reason))

    async def _rollback(self, which: str, reason: str | None) -> Adapter:
        adapter = self.find(which)
        if adapter.state in (S.CANDIDATE, S.LIVE, S.LOADING):
            return await self.take_back(adapter, reason or "taken back by hand", {})
        raise Problem(
            409, f"{adapter.name} is {adapter.state.value}: there is nothing to take back", field="path.adapter"
        )

    def public(self, loaded: set[str]) -> list[Adapter]:
        found = (
            a.model_copy(update={"episodes": self.pins.get(a.name, 0), "loaded": a.name in loaded})
            for a in self.items.values()
        )
        return sorted(found, key=lambda a: (a.model, -a.version))


def _plain(numbers: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in numbers.items() if k not in ("meta", "sha256", "engine_path")}


__all__ = ["Adapters", "Mutate"]
