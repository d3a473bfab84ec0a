from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace

import pytest
from tests.support.adapter_world import TrainerSide, World, accept_after, agent, play, world_config
from tests.support.fake_engine import LoraEngine
from tests.support.plane import register, state, until

from slipstream_proxy.control.adapters import swapper as swapper_module
from slipstream_proxy.control.shared.threads import end


async def pin(plane, episode: str, *, key: str = "-", task: str = "t", split: str = "train") -> dict:
    r = await plane.client.post(
        "/internal/pins", json=[{"key": key, "episode": episode, "model": "tiny", "task": task, "split": split}]
    )
    return (await r.json())[0]


async def test_a_new_adapter_is_loaded_warmed_and_live(plane):
    status, body = await register(plane, 1, step=3, parent=None)
    assert (status, body["state"]) == (201, "live")
    assert plane.engine.calls[:2] == [("load", "tiny@1"), ("warm", "tiny@1")]
    assert plane.deps.live.value["models"]["tiny"]["live"] == "tiny@1"
    assert json.loads((plane.config.root / "live.json").read_text())["models"]["tiny"]["live"] == "tiny@1"
    _, listed = await plane.ask("GET", "/adapters")
    assert listed["live"] == {"tiny": "tiny@1"}
    assert listed["adapters"][0]["loaded"]


async def test_a_name_is_never_used_again(plane):
    await register(plane, 1)
    assert (await plane.ask("POST", "/adapters", {"path": "tiny@1"}))[0] == 201  # the very same files: asked twice
    weights = plane.config.adapters_dir / "tiny@1" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\x05\0\0\0")
    status, body = await plane.ask("POST", "/adapters", {"path": "tiny@1"})
    assert (status, body["error"]["field"]) == (409, "body.path")


async def test_a_pinned_episode_keeps_its_adapter_and_the_old_one_leaves_after_it(make_plane):
    plane = await make_plane()
    plane.deps.rollout.swapper.grace = 0.05
    await register(plane, 1)
    assert await pin(plane, "old") == {"adapter": "tiny@1", "arm": "live", "chances": ""}
    await plane.call("old", adapter="tiny@1")
    await plane.seen("old")
    await register(plane, 2)
    assert await pin(plane, "old") == {"adapter": "tiny@1", "arm": "live", "chances": ""}
    assert (await pin(plane, "new"))["adapter"] == "tiny@2"
    assert set(plane.engine.adapters) == {"tiny@1", "tiny@2"}
    assert (await state(plane, 1))["state"] == "retired"
    await plane.call("old", adapter="tiny@1", done=True)
    await until(lambda: set(plane.engine.adapters) == {"tiny@2"})
    await until(lambda: plane.deps.live.value["engines"][0]["loaded"] == ["tiny@2"])


async def test_a_version_waits_for_a_slot_and_the_oldest_episodes_move_only_after_the_stated_time(make_plane):
    plane = await make_plane(engine={"max_loras": 3}, adapters={"pin_seconds": 3.0})
    plane.deps.rollout.swapper.grace = 0.05
    for n in (1, 2, 3):
        await register(plane, n)
        await pin(plane, f"e{n}")
        await plane.call(f"e{n}", adapter=f"tiny@{n}")
        await plane.seen(f"e{n}")
    await until(lambda: plane.deps.rollout.registry.pins.get("tiny@3"))
    assert (await plane.ask("GET", "/adapters"))[1]["room"] == {"tiny": False}
    await register(plane, 4, wait=0)
    assert (await pin(plane, "e1"))["adapter"] == "tiny@1"
    status = (await plane.ask("GET", "/status"))[1]
    assert status["moved_episodes"] == {}
    assert any("2 running episodes keep tiny@1 and tiny@2 there" in line for line in status["waiting"])
    await register(plane, 5, wait=0)
    await until(lambda: plane.deps.live.value["models"]["tiny"]["live"] == "tiny@5")
    assert (await state(plane, 4))["reason"] == "tiny@5 came while it waited"
    await until(lambda: "tiny@1" not in plane.engine.adapters)
    assert (await pin(plane, "e1")) == {"adapter": "tiny@5", "arm": "live", "chances": ""}
    moved = (await plane.ask("GET", "/status"))[1]["moved_episodes"]
    assert set(moved) == {"slot"}


@pytest.mark.parametrize(("versions", "rest"), [(1, 2.0), (3, 0.08)])
async def test_ended_runs_are_counted_sooner_while_versions_hold_all_slots(make_plane, monkeypatch, versions, rest):
    plane = await make_plane(engine={"max_loras": 3})
    for n in range(1, versions + 1):
        await register(plane, n)
        await pin(plane, f"e{n}")
        await plane.call(f"e{n}", adapter=f"tiny@{n}")
        await plane.seen(f"e{n}")
    await until(lambda: plane.deps.rollout.registry.pins.get(f"tiny@{versions}"))
    swapper = plane.deps.rollout.swapper
    assert swapper.is_full() == (versions == 3)
    await end(swapper._tasks)
    began = time.monotonic()
    clock = SimpleNamespace(now=began)
    clock.monotonic = lambda: clock.now
    open_pins = plane.deps.stores.require().pins

    counts = []

    def slowly(count=open_pins.open) -> dict[str, int]:
        clock.now += 0.02
        counts.append(clock.now)
        return count()

    monkeypatch.setattr(open_pins, "open", slowly)
    monkeypatch.setattr(swapper_module, "time", clock)
    clock.now = began + 10.0
    await swapper._pins()
    for after, count in ((rest - 0.001, 1), (rest + 0.001, 2)):
        clock.now = counts[0] + after
        await swapper._pins()
        assert len(counts) == count


async def test_versions_that_have_just_filled_the_slots_do_not_wait_for_a_pause_of_before(make_plane, monkeypatch):
    plane = await make_plane(engine={"max_loras": 3})
    swapper = plane.deps.rollout.swapper
    await end(swapper._tasks)
    full, counts = False, []
    monkeypatch.setattr(swapper, "is_full", lambda: full)
    monkeypatch.setattr(plane.deps.stores.require().pins, "open", lambda: counts.append(1) or {})
    swapper._counted, swapper._count_took = time.monotonic() - 0.5, 0.02
    await swapper._pins()
    assert not counts, "they are not full: a count each two seconds"
    full = True
    await swapper._pins()
    assert counts


@pytest.mark.parametrize("seed", range(4))
def test_no_running_episode_changes_its_adapter_however_fast_steps_are(tmp_path, monkeypatch, seed):
    """Runs of two turns five seconds apart, a step every 0.4 s, ten minutes long."""
    config = world_config(tmp_path, 1600)

    async def main() -> World:
        world = World(config, seed, monkeypatch)
        agents = [agent(world, 2, 5.0) for _ in range(24)]
        await world.run(TrainerSide(world, 0.4).steps_forever(), accept_after(world, 20.0), *agents, seconds=600.0)
        return world

    world = play(main())
    assert (world.strangers, world.moved, world.swapper.moves.total()) == (0, 0, 0)
    assert world.lifecycle.swaps > 60, "versions go live as soon as runs have ended on those before"
    assert world.calls > 2_000


def test_long_runs_are_moved_no_sooner_than_stated_and_counted(tmp_path, monkeypatch):
    config = world_config(tmp_path, 1600)

    async def main() -> World:
        world = World(config, 0, monkeypatch)
        since: dict[str, float] = {}

        def look() -> None:
            held = {a.name for a in world.swapper.held()}
            for name in held:
                since.setdefault(name, asyncio.get_running_loop().time())
            for name in world.registry.given_up & since.keys():
                assert asyncio.get_running_loop().time() - since.pop(name) >= config.adapters.pin_seconds

        world.watchers.append(look)
        agents = [agent(world, 10, 60.0) for _ in range(8)]
        await world.run(TrainerSide(world, 0.4).steps_forever(), accept_after(world, 20.0), *agents, seconds=1800.0)
        return world

    world = play(main())
    assert world.moved == world.swapper.moves["slot"] > 0
    assert world.lifecycle.swaps >= 1800 / config.adapters.pin_seconds


async def test_a_refused_adapter_stays_out_and_traffic_goes_on(plane):
    await register(plane, 1)
    plane.engine.refuse["tiny@2"] = 400
    status, body = await register(plane, 2)
    assert (status, body["state"]) == (201, "refused")
    assert "400" in body["reason"]
    assert plane.deps.live.value["models"]["tiny"]["live"] == "tiny@1"

    async def told():
        text = (await plane.ask("GET", "/training/events"))[1]
        return [
            e for e in map(json.loads, text.splitlines()) if e["kind"] == "refused" and e["data"]["adapter"] == "tiny@2"
        ]

    assert await until(told)


async def test_an_engine_that_fails_on_it_is_asked_until_patience_ends(make_plane):
    plane = await make_plane(adapters={"patience": 0.3})
    plane.engine.refuse["tiny@1"] = 500
    status, body = await register(plane, 1)
    assert (status, body["state"]) == (201, "refused")
    assert len([c for c in plane.engine.calls if c == ("load", "tiny@1")]) >= 2


async def test_an_engine_error_that_goes_away_is_waited_for(plane):
    plane.engine.refuse["tiny@1"] = 500
    await register(plane, 1, wait=0)
    await until(lambda: plane.engine.calls)
    plane.engine.refuse.clear()
    await until(lambda: plane.deps.live.value["models"]["tiny"]["live"] == "tiny@1")


async def test_after_an_engines_restart_its_adapters_come_first(plane):
    await register(plane, 1)
    plane.engine.restart()
    await until(lambda: "tiny@1" in plane.engine.adapters)
    await until(lambda: plane.deps.live.value["engines"][0]["ok"])
    assert plane.deps.live.value["engines"][0]["loaded"] == ["tiny@1"]


async def test_a_dead_engine_is_not_ok_and_loads_when_it_is_back(plane):
    plane.engine.up = False
    await until(lambda: not plane.deps.live.value["engines"][0]["ok"])
    await register(plane, 1, wait=0)
    assert (await state(plane, 1))["state"] == "loading"
    plane.engine.up = True
    await until(lambda: plane.deps.live.value["models"]["tiny"]["live"] == "tiny@1")


async def test_a_restarted_engine_that_refuses_the_live_one_gets_the_one_before(plane):
    await register(plane, 1)
    await register(plane, 2)
    plane.engine.refuse["tiny@2"] = 400
    plane.engine.restart()
    await until(lambda: plane.deps.live.value["models"]["tiny"]["live"] == "tiny@1")
    await until(lambda: plane.deps.live.value["engines"][0]["ok"])


async def test_a_killed_control_plane_goes_on_loading(make_plane):
    plane = await make_plane()
    plane.engine.up = False
    await until(lambda: not plane.deps.engines.engines[0].ok)
    await register(plane, 1, wait=0)
    await plane.again()
    plane.engine.up = True
    await until(lambda: plane.deps.live.value["models"]["tiny"]["live"] == "tiny@1")


async def test_all_engines_have_it_before_it_is_live(make_plane, engine):
    second = await LoraEngine().start()
    try:
        plane = await make_plane(engine={"urls": [engine.url, second.url]})
        await until(lambda: all(e["ok"] for e in plane.deps.live.value["engines"]))
        await register(plane, 1)
        assert "tiny@1" in engine.adapters
        assert "tiny@1" in second.adapters
    finally:
        await second.stop()


async def test_files_of_long_retired_adapters_go(make_plane):
    plane = await make_plane(adapters={"keep": 1})
    plane.deps.rollout.swapper.grace = 0.0
    for n in (1, 2, 3, 4):
        await register(plane, n)
    folder = plane.config.adapters_dir
    await until(lambda: sorted(p.name for p in folder.iterdir()) == ["tiny@3", "tiny@4"])


async def test_files_that_no_rollback_needs_go_where_the_folder_is_too_large(make_plane):
    plane = await make_plane(adapters={"keep": 9})
    plane.deps.rollout.swapper.grace = 0.0
    for n in (1, 2, 3, 4, 5):
        await register(plane, n)
    await until(lambda: plane.deps.rollout.registry.live("tiny") == "tiny@5" and len(plane.deps.engines.loaded()) <= 2)
    swapper, folder = plane.deps.rollout.swapper, plane.config.adapters_dir
    assert swapper.forget_files(1) > 0
    assert sorted(p.name for p in folder.iterdir()) == ["tiny@2", "tiny@3", "tiny@4", "tiny@5"]
    swapper.forget_files(10**12)
    assert {p.name for p in folder.iterdir()} >= {"tiny@4", "tiny@5"}, "what a rollback needs stays"
    assert swapper.forget_files(10**12) == 0


async def test_promote_and_rollback_by_hand(make_plane):
    plane = await make_plane(gate={"mode": "manual"})
    _, body = await register(plane, 1)
    assert body["state"] == "candidate"
    assert plane.deps.live.value["models"]["tiny"]["live"] == "tiny"
    status, body = await plane.ask("POST", "/adapters/1/promote", {"reason": "looks good"})
    assert (status, body["state"], body["reason"]) == (200, "live", "looks good")
    assert plane.deps.live.value["models"]["tiny"]["live"] == "tiny@1"
    await register(plane, 2)
    await plane.ask("POST", "/adapters/tiny@2/promote", {})
    status, body = await plane.ask("POST", "/adapters/tiny@2/rollback")
    assert (status, body["state"]) == (200, "rolled_back")
    assert plane.deps.live.value["models"]["tiny"]["live"] == "tiny@1"
    assert (await plane.ask("POST", "/adapters/tiny@2/rollback"))[0] == 409
    await plane.ask("POST", "/adapters/tiny@2/promote")
    await until(lambda: plane.deps.live.value["models"]["tiny"]["live"] == "tiny@2")
    assert (await plane.ask("POST", "/adapters/9/promote"))[0] == 404
