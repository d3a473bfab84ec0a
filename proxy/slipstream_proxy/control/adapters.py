"""Versions and where they stand: what is live, what is tried, what is taken back.

The state is in memory and every change is a durable mutation (and an event); the store has it for the next start. ``swap.py`` moves adapters in and
out of the engines by it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.config import Config
from slipstream.contract import Adapter, AdapterIn, AdapterState, Event
from slipstream_proxy.control.http import Problem
from slipstream_proxy.control.threads import in_thread
from slipstream_proxy.control.validate import BadAdapter, base_shapes, check_folder, split_name

if TYPE_CHECKING:
    from slipstream_proxy.store.protocol import Store

log = logging.getLogger(__name__)
S = AdapterState
Mutate = Callable[[str, dict[str, Any]], Awaitable[None]]


class Adapters:
    """``mutate(op, data)`` keeps a change durably. All methods belong to the event loop."""

    def __init__(self, config: Config, mutate: Mutate) -> None:
        self.config = config
        self.mutate = mutate
        self.items: dict[str, Adapter] = {}
        self.pins: dict[str, int] = {}
        """Adapter → open episodes, as the store last said."""
        self.given_up: set[str] = set()
        """Adapters whose episodes have been moved to the live one, to stay within the engine's slots."""
        self.arrived: dict[str, float] = {}
        """When an adapter that is loading came (monotonic)."""
        self.wake = asyncio.Event()
        self.swaps = 0
        self.rollbacks = 0
        self.drop: Callable[[str], Awaitable[None]] | None = None
        """Told of an adapter that was rolled back: groups sampled from it must not train."""
        self.swap_seconds: Callable[[float], None] = lambda _: None

    # what there is
    @property
    def models(self) -> list[str]:
        return sorted({self.config.model_name, *(r.trained for r in self.config.models.values() if r.trained)})

    @property
    def base(self) -> str:
        """The engine's own model: what answers while there is no adapter."""
        return self.config.model_name

    @functools.cached_property
    def base_shapes(self) -> dict[str, list[int]]:
        try:
            return base_shapes(self.config.engine.model)
        except (BadAdapter, OSError) as e:
            log.warning("the base model's shapes cannot be read, adapters are not compared with them: %s", e)
            return {}

    def restore(self, store: Store | None) -> None:
        """At start: where the last process left off."""
        for a in store.adapters() if store else []:
            self.items[a.name] = a.model_copy(update={"loaded": False})
            if a.state == S.LOADING:
                self.arrived[a.name] = time.monotonic()
        self.wake.set()

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

    def of(self, model: str, state: AdapterState) -> Adapter | None:
        """The newest of a model in a state (there is one at most that is live or candidate)."""
        return max(
            (a for a in self.items.values() if a.model == model and a.state == state),
            key=lambda a: a.version,
            default=None,
        )

    def accepted(self, model: str) -> str:
        live = self.of(model, S.LIVE)
        return live.name if live else self.base

    def live(self, model: str) -> str:
        """What new episodes get, arms aside."""
        candidate = self.of(model, S.CANDIDATE)
        return candidate.name if candidate and self.config.gate.mode == "guard" else self.accepted(model)

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

    def path_for_engine(self, adapter: Adapter) -> str:
        return str(Path(self.config.engine.adapters_dir or self.config.adapters_dir) / adapter.path)

    # changes
    async def save(self, adapter: Adapter, **change: Any) -> Adapter:
        adapter = adapter.model_copy(update=change)
        self.items[adapter.name] = adapter
        await self.mutate("adapter", adapter.model_dump(mode="json"))
        self.wake.set()
        return adapter

    async def event(self, kind: str, **data: Any) -> None:
        log.info("%s %s", kind, " ".join(f"{k}={v}" for k, v in data.items() if k != "numbers"))
        await self.mutate("event", Event(kind=kind, at=time.time(), data=data).model_dump(mode="json"))

    async def register(self, wanted: AdapterIn) -> Adapter:
        """A new version. Raises ``Problem`` 409 (name used), 404 (no such folder), 422 (vLLM would not take it)."""
        name = wanted.path.strip("/")
        try:
            model, version = split_name(name)
        except BadAdapter as e:
            raise Problem(
                422, str(e), field="body.path", fix="a folder right under adapters.dir, named <model>@<n>"
            ) from e
        if wanted.model not in (None, model) or model not in self.models:
            known = ", ".join(self.models)
            raise Problem(
                404,
                f"{wanted.model or model!r} is no trained model",
                field="body.model",
                fix=f"trained models: {known}",
            )
        folder = self.config.adapters_dir / name
        before = self.items.get(name)
        if not folder.is_dir() or folder.is_symlink():
            if before:
                raise Problem(
                    409,
                    f"{name} is there already",
                    field="body.path",
                    fix="names are never used again: take the next number",
                )
            raise Problem(
                404, f"no folder {name} in adapters.dir", field="body.path", fix="write the files first, then register"
            )
        try:
            digest = await in_thread(check_folder, folder, self.config.engine.max_lora_rank, self.base_shapes)
        except BadAdapter as e:
            if before is None:
                bad = self._new(wanted, name, model, version, S.REFUSED, None)
                await self.save(bad, reason=str(e), decided=time.time())
                await self.event("refused", adapter=name, reason=str(e))
            raise Problem(422, str(e), field="body.path", fix="publish it again under the next number") from e
        if before is not None:
            if before.numbers.get("sha256") == digest:
                return before  # a trainer that was killed after registering asks again
            raise Problem(
                409,
                f"{name} is there already",
                field="body.path",
                fix="names are never used again: take the next number",
            )
        adapter = await self.save(self._new(wanted, name, model, version, S.LOADING, digest))
        self.arrived[name] = time.monotonic()
        await self.event("adapter", adapter=name, state="loading", parent=wanted.parent, step=wanted.step)
        return adapter

    def _new(
        self, wanted: AdapterIn, name: str, model: str, version: int, state: AdapterState, digest: str | None
    ) -> Adapter:
        numbers: dict[str, Any] = {"sha256": digest} if digest else {}
        if wanted.meta:
            numbers["meta"] = wanted.meta
        return Adapter(
            name=name, model=model, version=version, state=state, created=time.time(), path=name, parent=wanted.parent, step=wanted.step,
            batches=list(wanted.batches), numbers=numbers,
        )  # fmt: skip

    async def loaded(self, adapter: Adapter) -> None:
        """It is in every engine: give it its part by the gate's mode."""
        gate = self.config.gate
        started = self.arrived.pop(adapter.name, None)
        if adapter.numbers.get("forced"):
            await self.accept(adapter, "promoted by hand", {k: v for k, v in adapter.numbers.items() if k != "forced"})
        elif gate.mode == "guard" and gate.holdout == 0:
            await self.accept(adapter, "no gate", adapter.numbers)
        else:
            if old := self.of(adapter.model, S.CANDIDATE):
                await self.save(old, state=S.RETIRED, reason=f"undecided when {adapter.name} came", decided=time.time())
            await self.save(adapter, state=S.CANDIDATE)
            await self.event(
                "adapter", adapter=adapter.name, state="candidate", mode=gate.mode, control=self.accepted(adapter.model)
            )
        self.swaps += 1
        if started is not None:
            self.swap_seconds(time.monotonic() - started)

    async def accept(self, adapter: Adapter, reason: str, numbers: dict[str, Any]) -> Adapter:
        before = self.of(adapter.model, S.LIVE)
        if before and before.name != adapter.name:
            await self.save(before, state=S.RETIRED, reason=f"{adapter.name} is live")
        kept = {**adapter.numbers, **numbers, "accepted": True}
        kept.pop("forced", None)
        adapter = await self.save(adapter, state=S.LIVE, reason=reason, decided=time.time(), numbers=kept)
        await self.event(
            "promote",
            adapter=adapter.name,
            before=before.name if before else self.base,
            reason=reason,
            numbers=_plain(numbers),
        )
        return adapter

    async def take_back(
        self, adapter: Adapter, reason: str, numbers: dict[str, Any], state: AdapterState = S.ROLLED_BACK
    ) -> Adapter:
        """Rolled back or refused: the last accepted adapter answers new episodes."""
        was_live = adapter.state == S.LIVE
        adapter = await self.save(
            adapter, state=state, reason=reason, decided=time.time(), numbers={**adapter.numbers, **numbers}
        )
        if was_live and (back := self._last_accepted(adapter)):
            await self.save(back, state=S.LIVE, reason=f"{adapter.name} was taken back")
        kind = "rollback" if state == S.ROLLED_BACK else "refused"
        self.rollbacks += state == S.ROLLED_BACK
        if self.drop and state == S.ROLLED_BACK:
            await self.drop(adapter.name)
        await self.event(
            kind, adapter=adapter.name, to=self.live(adapter.model), reason=reason, numbers=_plain(numbers)
        )
        return adapter

    def _last_accepted(self, than: Adapter) -> Adapter | None:
        older = (
            a for a in self.items.values()
            if a.model == than.model and a.state == S.RETIRED and a.numbers.get("accepted") and (self.config.adapters_dir / a.path).is_dir()
        )  # fmt: skip
        return max(older, key=lambda a: a.decided or 0.0, default=None)

    async def promote(self, which: str, reason: str | None) -> Adapter:
        adapter = self.find(which)
        if adapter.state == S.LIVE:
            return adapter
        if adapter.state == S.CANDIDATE:
            return await self.accept(adapter, reason or "promoted by hand", {})
        if adapter.state == S.REFUSED or not (self.config.adapters_dir / adapter.path).is_dir():
            raise Problem(
                409, f"{adapter.name} cannot be served: {adapter.reason or 'its files are gone'}", field="path.adapter"
            )
        if adapter.state != S.LOADING:
            self.arrived[adapter.name] = time.monotonic()
        self.given_up.discard(adapter.name)
        return await self.save(adapter, state=S.LOADING, reason=reason, numbers={**adapter.numbers, "forced": True})

    async def rollback(self, which: str, reason: str | None) -> Adapter:
        adapter = self.find(which)
        if adapter.state in (S.CANDIDATE, S.LIVE, S.LOADING):
            self.arrived.pop(adapter.name, None)
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
    return {k: v for k, v in numbers.items() if k not in ("meta", "sha256")}


__all__ = ["Adapters", "Mutate"]
