"""States of adapters over the API (engines: test_swapper.py; the gate: test_gatekeeper.py)."""

from __future__ import annotations

import logging
import shutil

from tests.support.adapter_world import SERVED, TrainerSide, World, decide_at_random, play, world_config
from tests.support.adapters import write_adapter
from tests.support.plane import until

from slipstream.contract import Adapter, AdapterState, fallen

S = AdapterState


def adapter(n: int, state: str = "live", **more) -> Adapter:
    return Adapter(name=f"tiny@{n}", model="tiny", version=n, state=state, created=1.0, path=f"tiny@{n}", **more)


async def register(plane, n: int) -> dict:
    write_adapter(plane.config.adapters_dir / f"tiny@{n}", fill=n)
    return (await plane.ask("POST", "/adapters?wait=60", {"path": f"tiny@{n}"}))[1]


async def test_adapters_of_elsewhere_do_not_take_the_live_ones_place(plane):
    assert (await register(plane, 1))["state"] == "live"
    brought = {"adapters": [adapter(7).model_dump(mode="json")], "live": {}}
    assert (await plane.ask("POST", "/import/adapters", brought))[0] == 409
    brought["adapters"][0]["state"] = "retired"  # type: ignore[index]
    assert await plane.ask("POST", "/import/adapters", brought) == (200, {"adapters": 1})


async def test_promoting_an_adapter_whose_files_are_gone_says_so(plane):
    await register(plane, 1)
    await register(plane, 2)
    shutil.rmtree(plane.config.adapters_dir / "tiny@1")
    status, body = await plane.ask("POST", "/adapters/tiny@1/promote")
    assert status == 409
    assert "its files are gone from" in body["error"]["message"]
    assert str(plane.config.adapters_dir / "tiny@1") in body["error"]["message"]
    assert "put its folder back" in body["error"]["fix"]


async def test_what_an_engine_refused_cannot_be_promoted(plane):
    write_adapter(plane.config.adapters_dir / "tiny@1")
    refused = adapter(1, "refused", reason="the engine refuses it: rank 64 is above 16")
    brought = {"adapters": [refused.model_dump(mode="json")], "live": {}}
    assert (await plane.ask("POST", "/import/adapters", brought))[0] == 200
    status, body = await plane.ask("POST", "/adapters/tiny@1/promote")
    assert status == 409 and "rank 64" in body["error"]["message"] and "next number" in body["error"]["fix"]


async def test_an_accepted_adapter_stays_accepted_over_a_restart(plane):
    await register(plane, 1)
    await register(plane, 2)
    await plane.again()
    state = {
        a["name"]: (a["state"], a["accepted"], bool(a["sha256"]))
        for a in (await plane.ask("GET", "/adapters"))[1]["adapters"]
    }
    assert state == {"tiny@1": ("retired", True, True), "tiny@2": ("live", True, True)}
    assert (await plane.ask("POST", "/adapters/tiny@2/rollback"))[1]["state"] == "rolled_back"
    assert (await plane.ask("GET", "/adapters"))[1]["live"] == {"tiny": "tiny@1"}


def family(*states: AdapterState) -> dict[str, Adapter]:
    """Versions from 1 on, each made from the one before; live ones were accepted."""
    made = [adapter(n, s, parent=f"tiny@{n - 1}", accepted=s == S.LIVE) for n, s in enumerate(states, 1)]
    return {a.name: a for a in made}


def test_a_version_falls_with_the_one_that_it_was_made_from():
    known = family(S.RETIRED, S.ROLLED_BACK, S.RETIRED, S.LOADING)
    known["tiny@1"] = adapter(1, "retired", accepted=True)
    assert [fallen(known, f"tiny@{n}") for n in (1, 2, 3, 4)] == [None, "tiny@2", "tiny@2", "tiny@2"]
    assert fallen(known, "tiny") is None
    assert fallen(known, None) is None
    known["tiny@3"] = adapter(3, "live", parent="tiny@2", accepted=True)
    assert [fallen(known, f"tiny@{n}") for n in (3, 4)] == [None, None], "somebody promoted it"
    circle = {"tiny@1": adapter(1, "retired", parent="tiny@1")}
    assert fallen(circle, "tiny@1") is None


async def test_what_comes_late_from_a_version_that_was_taken_back_is_never_served(make_plane):
    plane = await make_plane(gate={"holdout": 0.1})

    async def come(n: int, parent: str) -> str:
        write_adapter(plane.config.adapters_dir / f"tiny@{n}", fill=n)
        body = {"path": f"tiny@{n}", "parent": parent}
        return (await plane.ask("POST", "/adapters?wait=60", body))[1]["state"]

    assert await come(1, "tiny") == "candidate"
    assert (await plane.ask("POST", "/adapters/tiny@1/rollback"))[0] == 200
    assert [await come(2, "tiny@1"), await come(3, "tiny@2"), await come(4, "tiny")] == ["retired"] * 2 + ["candidate"]
    found = {a["name"]: a["reason"] for a in (await plane.ask("GET", "/adapters"))[1]["adapters"]}
    assert found["tiny@3"] == "made from tiny@1, which was taken back"
    assert {name for kind, name in plane.engine.calls if kind == "load"} == {"tiny@1", "tiny@4"}
    assert (await plane.ask("POST", "/adapters/tiny@2/promote"))[0] == 200, "a person may"
    await until(lambda: plane.deps.rollout.registry.accepted("tiny") == "tiny@2")
    assert await come(5, "tiny@2") == "candidate"


async def test_a_candidate_goes_with_the_live_version_that_it_was_made_from(make_plane):
    plane = await make_plane(gate={"holdout": 0.1})
    await register(plane, 1)
    assert (await plane.ask("POST", "/adapters/tiny@1/promote"))[1]["state"] == "live"
    write_adapter(plane.config.adapters_dir / "tiny@2", fill=2)
    await plane.ask("POST", "/adapters?wait=60", {"path": "tiny@2", "parent": "tiny@1"})
    assert (await plane.ask("POST", "/adapters/tiny@1/rollback"))[0] == 200
    found = {a["name"]: a["state"] for a in (await plane.ask("GET", "/adapters"))[1]["adapters"]}
    assert found == {"tiny@1": "rolled_back", "tiny@2": "rolled_back"}
    assert plane.deps.live.value["models"]["tiny"]["live"] == "tiny"


def watch_lineage(world: World, trainer: TrainerSide) -> list[str]:
    """Wrong from its first entry on. It follows what really was made from what, by its own books."""
    wrong: list[str] = []
    gone: set[str] = set()

    def look() -> None:
        items = world.registry.items
        for name, a in items.items():
            parent = trainer.made[name][0]
            if a.state == S.ROLLED_BACK or (parent in gone and not a.accepted):
                gone.add(name)
            elif a.state == S.LIVE:
                gone.discard(name)  # what a rollback went back to
        wrong.extend(f"{n} is {items[n].state.value}" for n in gone if items[n].state in SERVED)

    def load(name: str) -> None:
        look()
        if name in gone:
            wrong.append(f"{name} is loaded")

    world.watchers.append(look)
    world.load_watchers.append(load)
    return wrong


def test_nothing_made_from_a_version_that_was_taken_back_is_loaded_or_served(tmp_path, monkeypatch):
    """A step every 0.4 s, and rollbacks at any moment, in 1,000 orders of events."""
    config, restored = world_config(tmp_path, 40), 0
    for name in ("current_policy", "recovery"):
        monkeypatch.setattr(logging.getLogger(f"slipstream_trainer.versions.{name}"), "disabled", True)

    async def one(seed: int) -> None:
        nonlocal restored
        world = World(config, seed, monkeypatch)
        trainer = TrainerSide(world, 0.4)
        wrong = watch_lineage(world, trainer)

        def weights() -> None:
            state = trainer.policy.state
            own = trainer.made.get(state.weights, ("", 0.0))[1]
            assert state.ahead or trainer.weights.item() == own, "weights of another version"

        await world.run(trainer.steps_forever(), decide_at_random(world, 0.5), seconds=5.0)
        trainer.policy.look()
        weights()
        assert not wrong, (seed, wrong)
        assert trainer.restored <= world.rollbacks, (seed, "it went back more often than something was taken back")
        assert trainer.lost <= world.rollbacks, (seed, "a rollback cost more than the batch in hand")
        assert fallen(world.registry.items, trainer.policy.state.published) is None, seed
        restored += trainer.restored

    for seed in range(1_000):
        play(one(seed))
    assert restored > 1_000
