"""A trainer, a gate and a control plane's adapters on a clock of their own: an hour passes in a second.

Registry, registrar, lifecycle and swapper are those that run in production, and so is the trainer's ``CurrentPolicy``.
Engines, disks and the store are stand-ins that take random times, so each run has another order of events.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from slipstream.config import Config
from slipstream.contract import Adapter, AdapterIn, AdapterList, AdapterState, GateReport
from slipstream_proxy.control.adapters import checks as checks_module
from slipstream_proxy.control.adapters import lifecycle as lifecycle_module
from slipstream_proxy.control.adapters import registrar as registrar_module
from slipstream_proxy.control.adapters import swapper as swapper_module
from slipstream_proxy.control.adapters.files import AdapterDigests
from slipstream_proxy.control.adapters.lifecycle import AdapterLifecycle
from slipstream_proxy.control.adapters.registrar import AdapterRegistrar
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.adapters.swapper import Swapper
from slipstream_trainer.model.adapter import distance, load_adapter
from slipstream_trainer.model.weights import Snapshot
from slipstream_trainer.versions.checkpoint import CheckpointState
from slipstream_trainer.versions.current_policy import CurrentPolicy
from slipstream_trainer.versions.turns import TrainerTurns

S = AdapterState
SERVED = (S.CANDIDATE, S.LIVE)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Waiting takes no time: the clock jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(timeout: float | None = None) -> Any:
            self.now += timeout or 0.0
            return select(0)

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now


def play(main: Coroutine[Any, Any, Any]) -> Any:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


def world_config(folder: Path, versions: int, **settings: dict[str, Any]) -> Config:
    """Settings of worlds with the folders of that many versions."""
    for n in range(1, versions + 1):
        (folder / "adapters" / f"tiny@{n}").mkdir(parents=True)
    tree: dict[str, Any] = {"data_dir": str(folder), "engine": {"name": "tiny"}, "gate": {"mode": "guard"}}
    for name, section in settings.items():
        tree[name] = tree.get(name, {}) | section
    return Config.model_validate(tree)


class World:
    """Make it inside of the loop."""

    def __init__(self, config: Config, seed: int, monkeypatch: Any) -> None:
        self.random = random.Random(seed)
        self.config = config
        self.registry = AdapterRegistry(config)
        self.registry.files.exist = lambda _: True  # type: ignore[method-assign,assignment]
        self.loaded: set[str] = set()
        self.pinned: Counter[str] = Counter()
        """What the store knows of open episodes."""
        self.moved = self.rollbacks = self.calls = 0
        self.strangers = 0
        """Calls of running episodes whose adapter had left the engines."""
        self.watchers: list[Callable[[], None]] = []
        """Called after each change."""
        self.load_watchers: list[Callable[[str], None]] = []
        """Called as an engine is asked to load."""
        for module in (checks_module, lifecycle_module, registrar_module, swapper_module):
            monkeypatch.setattr(module, "in_thread", self._in_thread)
        monkeypatch.setattr(checks_module, "check_folder", lambda folder, *_: AdapterDigests(folder.name, "1"))
        monkeypatch.setattr(time, "monotonic", lambda: asyncio.get_running_loop().time())
        journal: Any = SimpleNamespace(change=self._change, wake=asyncio.Event(), stores=SimpleNamespace(shared=False))
        fleet: Any = SimpleNamespace(
            agree=lambda decide: decide(), follow=self.pause, mine=lambda _: True, may_refuse=lambda _: True,
            up_to_date=lambda _: True,
        )  # fmt: skip
        pins = SimpleNamespace(open=lambda: dict(+self.pinned), move=self._move)
        store = SimpleNamespace(pins=pins, batches=SimpleNamespace(drop_adapter=lambda _: 0))
        stores: Any = SimpleNamespace(current=store, shared=False)
        awake = asyncio.Event()
        awake.set()
        engine = SimpleNamespace(loaded=self.loaded, failed={})
        engines: Any = SimpleNamespace(
            takers=lambda: [engine], load_all=self._load, unload=self._unload, loaded=lambda: self.loaded,
            refused={}, awake=awake, engines=[engine], serves=lambda name: name in self.loaded,
            refusal=lambda _: None,
        )  # fmt: skip
        trials: Any = SimpleNamespace(waits=lambda _: False)
        publisher: Any = SimpleNamespace(publish=self._watch)
        self.lifecycle = AdapterLifecycle(self.registry, journal, fleet, stores, lambda _: None)
        self.registrar = AdapterRegistrar(self.registry, journal, fleet, checks_module.AdapterChecks(self.registry))
        lease: Any = None
        self.swapper = Swapper(self.registry, trials, journal, self.lifecycle, fleet, engines, lease, publisher, stores)
        self.swapper.forget_files = lambda wanted=0: 0  # type: ignore[method-assign]

    async def pause(self, most: float = 0.02) -> None:
        await asyncio.sleep(self.random.random() * most)

    async def run(self, *parts: Coroutine[Any, Any, None], seconds: float) -> None:
        """All parts and the swapper at once. What a part raises ends the run."""
        tasks = [asyncio.ensure_future(p) for p in (*parts, self.swapper._run())]
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            task.cancel()
        for task in done:
            task.result()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _in_thread(self, call: Callable[..., Any], *args: Any) -> Any:
        await self.pause()
        return call(*args)

    async def _change(self, changed: list[Adapter], *_: Any, since: int | None = None) -> None:
        self.registry.put(changed)
        self._watch()
        await self.pause()

    async def _load(self, name: str, *_: object) -> list[BaseException]:
        for watch in self.load_watchers:
            watch(name)
        await self.pause(0.4)
        self.loaded.add(name)
        return []

    def open(self, name: str) -> None:
        self.pinned[name] += 1

    def close(self, name: str) -> None:
        """Of an episode that was moved, the live version's count is the one that falls."""
        self.pinned[name if self.pinned[name] > 0 else self.registry.live("tiny")] -= 1

    async def _unload(self, name: str) -> None:
        self.loaded.discard(name)
        self._watch()

    def _move(self, old: str, new: str) -> int:
        count = self.pinned.pop(old, 0)
        self.pinned[new] += count
        self.moved += count
        return count

    def _watch(self) -> None:
        for watch in self.watchers:
            watch()

    def list(self) -> AdapterList:
        adapters = list(self.registry.items.values())
        live, room = {"tiny": self.registry.live("tiny")}, {"tiny": self.swapper.room("tiny")}
        return AdapterList(adapters=adapters, live=live, room=room)


class Disk:
    """Checkpoints: what the weights were is one number."""

    def __init__(self) -> None:
        self.kept: list[tuple[CheckpointState, float]] = []

    def save(self, learner: Any, _: Any, state: CheckpointState, generators: Any = None) -> Path:
        self.kept.append((state, learner.model.weight.item()))
        return Path(str(len(self.kept) - 1))

    def of_weights(self, name: str) -> list[Path]:
        return [Path(str(n)) for n, (state, _) in reversed(list(enumerate(self.kept))) if state.weights == name]

    def load(self, at: Path, learner: Any, *_: Any, **__: Any) -> CheckpointState:
        state, weight = self.kept[int(at.name)]
        with torch.no_grad():
            learner.model.weight.fill_(weight)
        return state

    def prune(self, _: Any, *, keep: int | None = None) -> None:
        """All are kept."""

    def set_told(self, _: Any) -> None:
        """Nothing is told here."""


class TrainerSide:
    """Steps as ``Worker`` takes them: look, compute, look again, keep, publish."""

    def __init__(self, world: World, step: float) -> None:
        self.world, self.seconds = world, step
        model = torch.nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            model.weight.fill_(0.0)
        self.weights = model.weight
        optimizer = torch.optim.SGD(model.parameters())
        learner = SimpleNamespace(
            model=model,
            first={},
            save=lambda *, keep: Snapshot.take(model, optimizer),
            restore=lambda snapshot: snapshot.restore(model, optimizer),
            load=lambda folder: load_adapter(model, folder),
            distance=lambda folder: distance(model, folder),
        )
        trainer: Any = SimpleNamespace(learner=learner)
        self.queue: list[CheckpointState] = []
        publisher: Any = SimpleNamespace(
            adapters=world.list, finish=lambda: None, post=self._post, publish=self._publish, new_name=self._name,
            beside=lambda part: part(),
        )  # fmt: skip
        self.policy = CurrentPolicy(world.config, TrainerTurns(trainer).seat(world.config), Disk(), publisher)  # type: ignore[arg-type]
        self.policy.state = CheckpointState(weights="tiny")
        self.steps = self.lost = self.restored = self.version = 0
        self.made: dict[str, tuple[str, float]] = {}
        """Version → (what it was made from, its weights)."""
        self.most = world.config.trainer.max_staleness

    def _name(self, _: AdapterList) -> str:
        self.version += 1
        return f"tiny@{self.version}"

    def _post(self, kind: str, **_: Any) -> None:
        self.restored += kind == "restored"

    def _publish(self, _: Any, state: CheckpointState, *, again: bool) -> None:
        if state.adapter:
            self.queue.append(state)
            self.made[state.adapter] = state.base, self.weights.item()

    async def steps_forever(self) -> None:
        policy = self.policy
        policy._save_published(policy.state)
        while True:
            policy.look()
            await self.publish()
            before = policy.state
            if before.ahead >= self.most:
                await asyncio.sleep(0.5)
                continue
            await asyncio.sleep(self.seconds * (0.5 + self.world.random.random()))
            known = self.world.list()
            await self.world.pause()
            policy.note(known)
            if policy.go_back_if_taken():
                self.lost += 1
                continue
            self.steps += 1
            with torch.no_grad():
                self.weights.fill_(float(self.steps))
            adapter = self._name(known) if policy.has_room(known) else None
            ahead = 0 if adapter else before.ahead + 1
            weights = adapter or f"{before.published}+{ahead}"
            state = CheckpointState(
                step=self.steps, base=before.published, weights=weights, adapter=adapter, ahead=ahead
            )
            policy.advance(state, known)
            await self.publish()

    async def publish(self) -> None:
        for state in self.queue:
            await self.world.pause(0.1)
            wanted = AdapterIn(path=str(state.adapter), model="tiny", step=state.step, parent=state.base)
            await self.world.registrar.register(wanted)
        self.queue.clear()


async def decide_at_random(world: World, pause: float) -> None:
    """A gate that accepts and takes back whatever is on trial, and a person who takes back what is live."""
    while True:
        await asyncio.sleep(pause * 2 * world.random.random())
        candidate, live = world.registry.of("tiny", S.CANDIDATE), world.registry.of("tiny", S.LIVE)
        chance = world.random.random()
        if candidate is not None and chance < 0.55:
            world.rollbacks += 1
            await world.lifecycle.take_back(candidate, "worse", GateReport())
        elif candidate is not None and chance < 0.85:
            await world.lifecycle.accept(candidate, "not worse", GateReport())
        elif live is not None:
            world.rollbacks += 1
            await world.lifecycle.take_back(live, "by hand")


async def accept_after(world: World, seconds: float) -> None:
    """A gate that accepts whatever is on trial."""
    while True:
        await asyncio.sleep(seconds * (0.5 + world.random.random()))
        if (candidate := world.registry.of("tiny", S.CANDIDATE)) is not None:
            await world.lifecycle.accept(candidate, "not worse", GateReport())


async def agent(world: World, turns: int, between: float, share: float = 0.1) -> None:
    """Runs one after the other. The store learns a bit later that one began or ended."""
    registry, random, loop = world.registry, world.random, asyncio.get_running_loop()
    await asyncio.sleep(between * random.random())
    while True:
        name = registry.accepted("tiny") if random.random() < share else registry.live("tiny")
        loop.call_later(0.3 * random.random(), world.open, name)
        for turn in range(turns):
            await asyncio.sleep(between if turn else 0.0)
            world.calls += 1
            world.strangers += name != "tiny" and (name not in world.loaded or name in registry.given_up)
            await world.pause(0.3)
        loop.call_later(0.3 + 0.3 * random.random(), world.close, name)
