"""What a forgotten episode taught is taken back: the real control plane, and the real trainer on a tiny model."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.leases import first_lease, group_of
from tests.support.plane import register, state, until
from tests.support.tiny import make_config, make_model, make_trainer

from slipstream.client import Client
from slipstream_proxy.control.api.routes import episodes
from slipstream_proxy.store.tables.driver import StoreError
from slipstream_trainer.run.worker import Worker

STEP = {"min_groups": 1, "max_wait": 0.0, "max_ratio": 1e6}
"""The recorded probabilities are made up."""


@pytest.fixture
async def work(make_plane, tmp_path):
    """A proxy and a trainer that has made a version of each of three tasks."""
    plane = await make_plane(groups={"size": 3}, store={"forget": "retrain"})
    config = make_config(make_model(tmp_path), plane.config.root, **STEP)
    client = Client(str(plane.client.make_url("/")).rstrip("/"))
    client.http.headers.update(plane.as_())
    worker = await asyncio.to_thread(lambda: Worker(config, client, make_trainer(config, warm=False)))
    await asyncio.to_thread(worker.current.recover)

    async def step() -> bool:
        stepped = await asyncio.to_thread(worker.once)
        await asyncio.to_thread(worker.publisher.finish)
        return stepped

    for n in (1, 2, 3):
        await group_of(plane, f"t{n}", [0.0, 1.0, 0.5], adapter=f"tiny@{n - 1}" if n > 1 else "tiny")
        await until(step)
        await until(lambda n=n: _is(plane, n, "live"))
    yield plane, worker, step
    client.close()


async def _is(plane, n: int, wanted: str) -> bool:
    return (await state(plane, n))["state"] == wanted


async def _trained(plane, n: int) -> set[str]:
    _, found = await plane.ask("GET", f"/batches/{(await state(plane, n))['batches'][0]}")
    return {e["episode"] for e in found["episodes"]}


async def test_versions_are_made_anew_without_episodes_that_are_named(make_plane) -> None:
    plane = await make_plane(groups={"size": 2})
    for n in (1, 2):
        await group_of(plane, f"t{n}", [0.0, 1.0])
        leased = await first_lease(plane)
        batch, held = (leased.headers[f"x-slipstream-{name}"] for name in ("batch", "lease"))
        ack = {"lease": held, "outcome": "trained", "adapter": f"tiny@{n}"}
        assert (await plane.ask("POST", f"/batches/{batch}/ack", ack))[0] == 200
        _, made = await register(plane, n, batches=[batch], parent=f"tiny@{n - 1}" if n > 1 else None)
        assert made["state"] == "live"
    _, plan = await plane.ask("POST", "/training/anew", {"without": ["t2-0"], "dry_run": True})
    assert (plan["adapters"], plan["start"], plan["groups"], plan["left_out"]) == (
        ["tiny@2"],
        "tiny@1",
        0,
        {"named": 1},
    )
    assert (await state(plane, 2))["state"] == "live", "it was only asked"
    assert (await plane.ask("POST", "/training/anew", {}))[0] == 404
    _, plan = await plane.ask("POST", "/training/anew", {"adapter": "1"})
    assert (plan["adapters"], plan["start"], plan["groups"], plan["episodes"]) == (["tiny@1", "tiny@2"], "tiny", 2, 4)
    assert (await plane.ask("GET", "/adapters"))[1]["live"] == {"tiny": "tiny"}
    _, effect = await plane.ask("GET", "/adapters/tiny@2/effect?action=promote")
    assert f"It was taken back to be made anew: {(await state(plane, 2))['reason']}." in effect["says"]
    assert (await register(plane, 3, parent="tiny@2"))[1]["reason"] == "made from tiny@2, which was taken back"
    assert (await first_lease(plane)).status == 200
    assert (await plane.ask("POST", "/training/anew", {"adapter": "1"}, scopes=["trainer"]))[0] == 403


async def test_what_is_lost_with_them_comes_to_the_trainer_too(make_plane) -> None:
    """The gate had not decided on the version before, and a step has no version yet."""
    plane = await make_plane(groups={"size": 2}, gate={"holdout": 0.2, "pace": "go"})
    for n in (1, 2, 3):
        await group_of(plane, f"t{n}", [0.0, 1.0])
        batch, lease = await _leased(plane)
        await _ack(plane, batch, lease, step=n, **({"adapter": f"tiny@{n}"} if n < 3 else {}))
        if n < 3:
            await register(plane, n, batches=[batch], step=n, parent="tiny@1" if n > 1 else None)
    assert [(await state(plane, n))["state"] for n in (1, 2)] == ["retired", "candidate"]
    _, plan = await plane.ask("POST", "/training/anew", {"adapter": "2"})
    assert (plan["adapters"], plan["start"], plan["between"]) == (["tiny@2"], "tiny", ["tiny@1"])
    assert await _episodes(plane) == {f"t{n}-{i}" for n in (1, 2, 3) for i in (0, 1)}


async def test_a_version_that_was_made_from_a_file_is_found_by_its_episodes(make_plane) -> None:
    """Its groups are no less new to the trainer than before."""
    plane = await make_plane(groups={"size": 2}, store={"forget": "retrain"})
    for n in (1, 2):
        await group_of(plane, f"t{n}", [0.0, 1.0])
    await plane.ask("DELETE", "/episodes/t1-0")
    told = [{"key": "-", "episode": name} for name in ("t2-0", "t2-1", "never-seen")]
    _, first = await register(plane, 1, episodes=told)
    _, second = await register(plane, 2, parent="tiny@1", episodes=[{"key": "-", "episode": "t1-0"}])
    assert (first["state"], second["anew"]) == ("live", True), "what is forgotten already takes it back at once"
    assert len(await _trained(plane, 1)) == 2
    assert (await plane.ask("POST", "/adapters", {"path": "tiny@1", "episodes": told}))[1]["batches"] == first[
        "batches"
    ]
    _, plan = await plane.ask("POST", "/training/again", {"epochs": 1, "dry_run": True})
    assert plan["groups"] == 1, "imitated, and not trained on as a group"
    _, said = await plane.ask("POST", "/forget", {"episodes": ["t2-1"]})
    assert (said["adapters"], said["anew"]) == (["tiny@1"], ["tiny@1", "tiny@2"])
    assert (await plane.ask("GET", "/adapters"))[1]["live"] == {"tiny": "tiny"}


async def _leased(plane) -> tuple[str, str]:
    headers = (await first_lease(plane)).headers
    return headers["x-slipstream-batch"], headers["x-slipstream-lease"]


async def _episodes(plane) -> set[str]:
    """Of the next batch."""
    batch, _ = await _leased(plane)
    return {e["episode"] for e in (await plane.ask("GET", f"/batches/{batch}"))[1]["episodes"]}


async def _ack(plane, batch: str, lease: str, outcome: str = "trained", **told) -> None:
    assert (await plane.ask("POST", f"/batches/{batch}/ack", {"lease": lease, "outcome": outcome, **told}))[0] == 200


async def _audit(plane, action: str) -> list[dict]:
    return [e for e in (await plane.ask("GET", "/audit"))[1]["entries"] if e["action"] == action]


async def test_steps_that_no_version_has_yet_are_dropped_and_their_other_groups_come_again(make_plane) -> None:
    plane = await make_plane(groups={"size": 3}, store={"forget": "retrain"})
    await group_of(plane, "t1", [0.0, 1.0, 0.5])
    first, lease = await _leased(plane)
    await _ack(plane, first, lease, step=1)
    await group_of(plane, "t2", [0.0, 1.0, 0.5])
    second, lease = await _leased(plane)
    assert (await plane.ask("GET", "/adapters"))[1]["forgotten"] == []
    _, said = await plane.ask("POST", "/forget", {"episodes": ["t2-1"]})
    assert (said["adapters"], said["anew"]) == ([], [])
    assert said["steps"] == [{"model": "tiny", "batch": second, "step": None, "dropped": True}]
    _, said = await plane.ask("POST", "/forget", {"episodes": ["t1-1"]})
    assert said["steps"] == [{"model": "tiny", "batch": first, "step": 1, "dropped": True}]
    assert (await plane.ask("GET", "/adapters"))[1]["forgotten"] == sorted([first, second])
    assert [e["detail"]["steps"] for e in await _audit(plane, "train anew")] == [[1]]
    await _ack(plane, second, lease, "released")
    assert [await _episodes(plane) for _ in range(2)] == [{"t2-0", "t2-2"}, {"t1-0", "t1-2"}]


async def test_a_version_made_of_what_was_forgotten_before_it_came_is_taken_back_at_once(make_plane) -> None:
    plane = await make_plane(groups={"size": 3}, store={"forget": "retrain"})
    await group_of(plane, "t1", [0.0, 1.0, 0.5])
    batch, lease = await _leased(plane)
    await plane.ask("POST", "/forget", {"episodes": ["t1-1"]})
    _, made = await register(plane, 1, batches=[batch], step=1)  # the trainer had not looked
    assert (made["state"], made["anew"]) == ("retired", True)
    await _ack(plane, batch, lease, step=1, adapter="tiny@1")
    assert await _episodes(plane) == {"t1-0", "t1-2"}
    assert (await plane.ask("GET", "/adapters"))[1]["live"] == {"tiny": "tiny"}


async def test_the_groups_of_a_step_whose_version_is_taken_back_before_its_ack_come_again(make_plane) -> None:
    """Nothing of the step itself was forgotten: its version was made from one that had learned it."""
    plane = await make_plane(groups={"size": 2}, store={"forget": "retrain"}, gate={"holdout": 0.2, "pace": "go"})
    await group_of(plane, "t1", [0.0, 1.0])
    batch, lease = await _leased(plane)
    await register(plane, 1, batches=[batch], step=1)
    await _ack(plane, batch, lease, step=1, adapter="tiny@1")
    await group_of(plane, "t2", [0.0, 1.0])
    batch, lease = await _leased(plane)
    await register(plane, 2, batches=[batch], step=2, parent="tiny@1")
    assert (await plane.ask("POST", "/forget", {"episodes": ["t1-0"]}))[1]["anew"] == ["tiny@1", "tiny@2"]
    await _ack(plane, batch, lease, step=2, adapter="tiny@2")
    assert await _episodes(plane) == {"t2-0", "t2-1"}


@pytest.mark.parametrize("outcome", ["trained", "released"])
async def test_an_ack_that_comes_after_the_forgetting_brings_no_id_back(make_plane, outcome) -> None:
    plane = await make_plane(groups={"size": 3})
    names = await group_of(plane, "SECRET", [0.0, 1.0, 0.5])
    batch, lease = await _leased(plane)
    await plane.ask("POST", "/forget", {"episodes": names[:2]})
    await plane.deps.forgetter.erase()
    advantages = {f"-/{names[0]}": 1.0, names[1]: 0.5, f"-/{names[2]}": -1.0}
    await _ack(plane, batch, lease, outcome, advantages=advantages)
    written = b"".join(p.read_bytes() for p in plane.config.root.rglob("*") if p.is_file())
    assert [name in written.decode("latin1") for name in names] == [False, False, True]


async def test_what_was_acknowledged_just_before_is_forgotten_too(make_plane) -> None:
    plane = await make_plane()
    await plane.call("run-1", tags={"user": "ann"})
    assert (await plane.ask("POST", "/forget", {"user": "ann"}))[1]["forgotten"] == 1
    await plane.call("run-2")
    assert (await plane.ask("POST", "/forget", {"episodes": ["run-2"]}))[1]["unknown"] == []
    await plane.call("run-3")
    assert (await plane.ask("DELETE", "/episodes/run-3"))[0] == 200


async def test_a_version_that_comes_after_the_forgetting_is_named_where_nothing_is_trained_anew(make_plane) -> None:
    plane = await make_plane(groups={"size": 3})
    await group_of(plane, "t1", [0.0, 1.0, 0.5])
    batch, lease = await _leased(plane)
    await _ack(plane, batch, lease, step=27)
    status, said = await plane.ask("DELETE", "/episodes/t1-1")
    assert (status, said["steps"]) == (200, [{"model": "tiny", "batch": batch, "step": 27, "dropped": False}])
    assert (await register(plane, 1, batches=[batch], step=27))[1]["state"] == "live"
    (entry,) = await _audit(plane, "trained on forgotten")
    assert (entry["target"], entry["detail"]["batches"], entry["detail"]["episodes"]) == ("tiny@1", [batch], 1)
    _, said = await plane.ask("DELETE", "/episodes/t1-0")
    assert (said["adapters"], said["steps"]) == (["tiny@1"], [])
    await register(plane, 2, parent="tiny@1", batches=["other"], step=28)
    assert len(await _audit(plane, "trained on forgotten")) == 1
    _, plan = await plane.ask("POST", "/training/anew", {"adapter": "tiny@1", "dry_run": True})
    assert plan["adapters"] == ["tiny@1", "tiny@2"]


@pytest.mark.parametrize("forget", ["name", "retrain"])
async def test_a_request_that_is_cut_off_is_ended_at_the_next_start_and_names_the_same_again(
    make_plane, monkeypatch, forget
) -> None:
    plane = await make_plane(groups={"size": 3}, store={"forget": forget})
    await group_of(plane, "t1", [0.0, 1.0, 0.5], tags={"user": "ann"})
    batch, lease = await _leased(plane)
    await _ack(plane, batch, lease, step=1, adapter="tiny@1")
    assert (await register(plane, 1, batches=[batch], step=1))[1]["state"] == "live"
    await plane.call("other", tags={"user": "ann"})
    await plane.seen("other")
    monkeypatch.setattr(episodes, "EPISODES_PER_DELETION", 3)
    delete, cut = plane.deps.store.forget, []

    def once(names, now):
        if cut:
            raise StoreError("away")
        cut.append(1)
        return delete(names, now)

    monkeypatch.setattr(plane.deps.store, "forget", once, raising=False)
    assert (await plane.ask("POST", "/forget", {"user": "ann"}))[0] >= 500
    assert (await plane.ask("GET", "/episodes/t1-0"))[0] == 404
    monkeypatch.setattr(plane.deps.store, "forget", delete, raising=False)
    await plane.again()
    action = "train anew" if forget == "retrain" else "trained on forgotten"
    assert [e["target"] for e in await until(lambda: _audit(plane, action), 10.0)] == ["tiny@1"]
    anew = ["tiny@1"] if forget == "retrain" else []
    assert (await state(plane, 1))["anew"] == bool(anew)
    for _ in range(2):
        _, said = await plane.ask("POST", "/forget", {"user": "ann"})
        assert (said["adapters"], said["anew"]) == (["tiny@1"], anew), "asked again it answers the same"
    assert len(await _audit(plane, action)) == 1, "also where it is asked again while the start ends it"
    assert (await plane.ask("POST", "/forget", {"user": "bob"}))[1]["adapters"] == []


async def test_one_request_that_is_sent_twice_at_once_takes_back_once(make_plane) -> None:
    """An impatient client, or the start that ends one that was cut off while its sender asks again."""
    plane = await make_plane(groups={"size": 3}, store={"forget": "retrain"})
    await group_of(plane, "t1", [0.0, 1.0, 0.5], tags={"user": "ann"})
    batch, lease = await _leased(plane)
    await _ack(plane, batch, lease, step=1, adapter="tiny@1")
    await register(plane, 1, batches=[batch], step=1)
    both = await asyncio.gather(*(plane.ask("POST", "/forget", {"user": "ann"}) for _ in range(2)))
    assert [(status, said["adapters"], said["anew"]) for status, said in both] == [(200, ["tiny@1"], ["tiny@1"])] * 2
    assert len(await _audit(plane, "train anew")) == 1


@pytest.mark.slow
async def test_forgetting_takes_back_what_it_taught_and_the_rest_is_trained_on_anew(work) -> None:
    plane, worker, step = work
    status, said = await plane.ask("POST", "/forget", {"episodes": ["t2-1"]})
    assert (status, said["adapters"], said["anew"]) == (200, ["tiny@2"], ["tiny@2", "tiny@3"])
    found = [await state(plane, n) for n in (1, 2, 3)]
    assert [(a["state"], a["anew"], a["accepted"]) for a in found] == [
        ("live", False, True), ("retired", True, False), ("retired", True, False),
    ]  # fmt: skip
    (noted,) = [e for e in (await plane.ask("GET", "/audit"))[1]["entries"] if e["action"] == "train anew"]
    assert (noted["detail"]["start"], noted["detail"]["groups"]) == ("tiny@1", 2)
    await until(step)
    while await step():
        pass
    made = await state(plane, 4)
    assert made["parent"] == "tiny@1"
    versions = [a["version"] for a in (await plane.ask("GET", "/adapters"))[1]["adapters"]]
    learned = set().union(*[await _trained(plane, n) for n in versions if n > 3])
    assert learned == {"t2-0", "t2-2", "t3-0", "t3-1", "t3-2"}


@pytest.mark.slow
async def test_the_trainer_drops_a_step_that_waits_for_its_version(work, monkeypatch) -> None:
    plane, worker, step = work
    monkeypatch.setattr(plane.deps.rollout.swapper, "room", lambda _: False)
    await group_of(plane, "t4", [0.0, 1.0, 0.5], adapter="tiny@3")
    await until(step)
    assert worker.current.state.weights == "tiny@3+1"
    _, said = await plane.ask("POST", "/forget", {"episodes": ["t4-1"]})
    assert [(s["step"], s["dropped"]) for s in said["steps"]] == [(4, True)] and said["anew"] == []
    await asyncio.to_thread(worker.current.look)
    assert worker.current.state.weights == "tiny@3"
    monkeypatch.undo()
    await until(step)
    made = await state(plane, 4)
    assert (made["parent"], await _trained(plane, 4)) == ("tiny@3", {"t4-0", "t4-2"})
