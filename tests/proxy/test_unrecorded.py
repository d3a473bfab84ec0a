"""What is not recorded pins nothing beyond its reply: through data plane and control plane."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.dataplane import ASK, Proxy, post
from tests.support.fake_engine import LoraEngine
from tests.support.plane import Plane, make_config, register, until
from tests.support.replayed import recorded

from slipstream.cli import main
from slipstream_proxy.control.run.worker import ControlPlane
from slipstream_replay.cases import json_line

UNRECORDED = ({"x-slipstream-split": "off"}, {"x-slipstream-capture": "false"})


class Deployment:
    """A data plane and a control plane on one folder."""

    def __init__(self, config, engine: LoraEngine) -> None:
        self.control, self.proxy = Plane(config, engine), Proxy(config)

    async def start(self) -> Deployment:
        await self.control.start()
        await self.control.control.serve()
        await self.proxy.start()
        await until(lambda: self.proxy.plane.live.connected)
        self.control.deps.rollout.swapper.grace = 0.05
        return self

    async def restart_control(self) -> None:
        await self.control.control.stop()
        await until(lambda: not self.proxy.plane.live.connected)
        self.control.control = ControlPlane(self.control.config)
        self.control.deps = await self.control.control.start()
        await self.control.control.serve()
        await until(lambda: self.proxy.plane.live.connected)

    async def stop(self) -> None:
        await self.proxy.stop()
        await self.control.stop()

    async def live(self, *versions: int) -> None:
        for n in versions:
            assert (await register(self.control, n))[1]["state"] == "live"
        await until(lambda: self.proxy.plane.live.models["tiny"].live == f"tiny@{versions[-1]}")

    def pinned(self) -> dict[str, int]:
        """Running episodes by adapter, wherever they are known."""
        known = self.proxy.plane.episodes._known.values()
        workers = [pin.adapter for episode in known for pin in episode.pins.values()]
        registry = self.control.deps.rollout.registry
        return {**self.control.deps.store.pins.open(), **registry.pins, **dict.fromkeys(workers, 1)}


@contextlib.asynccontextmanager
async def deployed(folder: Path, **sections) -> AsyncIterator[Deployment]:
    engine = await LoraEngine().start()
    made = Deployment(make_config(folder, engine, **sections), engine)
    try:
        yield await made.start()
    finally:
        await made.stop()
        await engine.stop()


@pytest.mark.parametrize("arms", [False, True])
async def test_it_pins_nothing_anywhere_and_nothing_is_left_after_a_restart(tmp_path, arms):
    async with deployed(tmp_path, **({"gate": {"holdout": 0.3}} if arms else {})) as here:
        await register(here.control, 1)
        await until(lambda: "tiny@1" in here.proxy.plane.live.engines[0].loaded)
        for unrecorded in UNRECORDED:
            for name in ({}, {"x-slipstream-episode": "a"}, {"x-slipstream-episode": "b", "x-slipstream-task": "t"}):
                assert (await post(here.proxy.url, ASK, headers={**unrecorded, **name}))[0] == 200
        await post(here.proxy.url, ASK, headers={**UNRECORDED[1], "x-slipstream-episode": "c"})
        assert here.pinned() == {}
        await here.restart_control()
        assert here.pinned() == {}
        # a recorded call of the same run is pinned, and one that is not recorded has its adapter
        _, headers, _ = await post(here.proxy.url, ASK, headers={"x-slipstream-episode": "c"})
        pin = headers["x-slipstream-adapter"]
        await until(lambda: here.control.deps.store.pins.open() == {pin: 1})
        _, headers, _ = await post(here.proxy.url, ASK, headers={"x-slipstream-episode": "c", **UNRECORDED[1]})
        assert headers["x-slipstream-adapter"] == pin


async def test_a_forgotten_run_pins_nothing_either(tmp_path):
    async with deployed(tmp_path) as here:
        await here.live(1)
        named = {"x-slipstream-episode": "gone"}
        await post(here.proxy.url, ASK, headers=named)
        await here.control.seen("gone")
        assert (await here.control.ask("DELETE", "/episodes/gone"))[0] == 200
        asked = {"key": "-", "episode": "gone", "model": "tiny", "task": None}
        reply = await here.control.client.post("/internal/pins", json=[asked])  # of another worker
        assert (await reply.json())[0]["adapter"] == "tiny@1"
        assert here.control.deps.store.pins.open() == {}


async def test_it_has_its_adapter_as_long_as_it_is_under_way(tmp_path):
    async with deployed(tmp_path) as here:
        await here.live(1)
        engine = here.control.engine
        engine.hold = asyncio.Event()
        call = asyncio.create_task(post(here.proxy.url, ASK, headers=UNRECORDED[0]))
        await until(lambda: here.control.deps.rollout.registry.borrowed() == {"tiny@1"})
        await here.live(2, 3)
        await asyncio.sleep(1.0)  # twice as long as the swapper takes to look again
        assert "tiny@1" in engine.adapters and "tiny@2" not in engine.adapters
        engine.hold.set()
        assert (await call)[0] == 200
        await until(lambda: set(engine.adapters) == {"tiny@3"})
        # a worker that dies keeps nothing
        engine.hold = asyncio.Event()
        call = asyncio.create_task(post(here.proxy.url, ASK, headers=UNRECORDED[0]))
        await until(lambda: here.control.deps.rollout.registry.borrowed() == {"tiny@3"})
        here.proxy.tasks[0].cancel()
        await until(lambda: not here.control.deps.rollout.registry.borrowed())
        engine.hold.set()
        await call


async def test_a_replay_loads_both_versions_again_and_lets_go_of_them(tmp_path, capsys):
    async with deployed(tmp_path) as here:
        await here.live(1, 2, 3)
        engine = here.control.engine
        await until(lambda: set(engine.adapters) == {"tiny@3"})
        cases = tmp_path / "cases.jsonl"
        cases.write_text("".join(json_line(recorded(f"e{n}")) + "\n" for n in range(3)))
        argv = ["replay", str(cases), "--url", here.proxy.url, "--samples", "2", "--against", "tiny@1"]
        code = await asyncio.to_thread(main, [*argv, "--control", "tiny@2"])
        said = capsys.readouterr().out
        assert code == 2 and "3 cases cannot show" in said and "not compared" not in said, said
        assert {body["model"] for body, _ in engine.seen if body.get("n")} == {"tiny@1", "tiny@2"}
        await until(lambda: set(engine.adapters) == {"tiny@3"})
        assert here.pinned() == {}
        # nothing is left of its files: that is said, and nothing is asked
        here.control.deps.rollout.registry.files.folder(here.control.deps.rollout.registry.items["tiny@1"]).rename(
            tmp_path / "away"
        )
        assert await asyncio.to_thread(main, [*argv, "--control", "tiny@2"]) == 2
        assert "tiny@1 cannot be asked: tiny@1 cannot be served: its files are gone" in capsys.readouterr().err


async def test_a_replay_takes_no_slot_that_is_needed(tmp_path):
    async with deployed(tmp_path, engine={"max_loras": 2}) as here:
        await here.live(1)
        await post(here.proxy.url, ASK, headers={"x-slipstream-episode": "a"})
        await here.control.seen("a")
        await here.live(2)
        await post(here.proxy.url, ASK, headers={"x-slipstream-episode": "b"})
        status, said = await here.control.ask("POST", "/adapters/tiny@1/keep", {"seconds": 5})
        assert status == 200 and said["loaded"], "a run has it already"
        await post(here.proxy.url, ASK, headers={"x-slipstream-episode": "a", "x-slipstream-done": "true"})
        assert (await here.control.ask("POST", "/adapters/tiny@1/keep", {"seconds": 0}))[0] == 200
        await until(lambda: set(here.control.engine.adapters) == {"tiny@2"})
        await here.live(3)
        status, said = await here.control.ask("POST", "/adapters/tiny@1/keep", {"seconds": 5})
        assert status == 409 and said["error"]["fix"].startswith("raise engine.max_loras"), said
