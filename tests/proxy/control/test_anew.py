"""What a forgotten episode taught is taken back: the real control plane, and the real trainer on a tiny model."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.leases import first_lease, group_of
from tests.support.plane import register, state, until
from tests.support.tiny import make_config, make_model, make_trainer

from slipstream.client import Client
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
