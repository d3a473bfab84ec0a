"""The gate on a control plane as it runs (its statistics: test_gate.py)."""

from __future__ import annotations

import json

import pyarrow as pa
from tests.proxy.control.conftest import until
from tests.proxy.control.test_swapper import pin, register, state


async def play(plane, tasks: int, rewards: dict[str, float], size: int = 4) -> None:
    """Tasks of ``size`` episodes each, pinned as the data plane would, rewarded by the adapter they got."""
    for t in range(tasks):
        for i in range(size):
            episode = f"{t}-{i}"
            got = await pin(plane, episode, task=f"task{t}")
            await plane.call(episode, task=f"task{t}", adapter=got["adapter"], arm=got["arm"], done=True)
            await plane.ask("POST", f"/episodes/{episode}/rewards", {"value": rewards[got["adapter"]]})


async def test_guard_takes_a_worse_one_back_and_says_so(make_plane):
    plane = await make_plane(gate={"mode": "guard", "holdout": 0.5, "min_pairs": 4}, groups={"size": 4})
    _, body = await register(plane, 1)
    assert body["state"] == "candidate"
    live = plane.deps.live.value["models"]["tiny"]
    assert (live["live"], live["arms"]) == ("tiny@1", [["tiny", "control", 0.5]])
    await play(plane, 14, {"tiny@1": 0.0, "tiny": 1.0})
    await until(lambda: _is(plane, 1, "rolled_back"))
    await until(
        lambda: plane.deps.live.value["models"]["tiny"] == {"base": "tiny", "live": "tiny", "arms": [], "loaded": []}
    )
    events = [json.loads(x) for x in (await plane.ask("GET", "/training/events"))[1].splitlines()]
    told = next(e for e in events if e["kind"] == "rollback")
    assert told["data"]["adapter"] == "tiny@1"
    assert told["data"]["gate"]["difference"] == -1.0
    r = await plane.client.post(
        "/slipstream/v1/batches/lease", json={"worker": "w", "min_groups": 1, "max_wait": 0}, headers=plane.as_()
    )
    if r.status == 200:
        table = pa.ipc.open_stream(await r.read()).read_all()
        assert "tiny@1" not in table["adapter"].to_pylist()


async def test_guard_accepts_a_better_one(make_plane):
    plane = await make_plane(gate={"mode": "guard", "holdout": 0.5, "min_pairs": 4}, groups={"size": 4})
    await register(plane, 1)
    await play(plane, 14, {"tiny@1": 1.0, "tiny": 0.0})
    await until(lambda: _is(plane, 1, "live"))
    await until(lambda: plane.deps.live.value["models"]["tiny"]["arms"] == [])


async def test_a_newer_candidate_takes_the_place_of_an_undecided_one(make_plane):
    plane = await make_plane(gate={"mode": "guard", "holdout": 0.1})
    await register(plane, 1)
    await register(plane, 2)
    assert (await state(plane, 1))["state"] == "retired"
    assert "undecided" in (await state(plane, 1))["reason"]
    live = plane.deps.live.value["models"]["tiny"]
    assert (live["live"], live["arms"]) == ("tiny@2", [["tiny", "control", 0.1]])


async def test_canary_gives_the_candidate_its_share_only(make_plane):
    plane = await make_plane(gate={"mode": "canary", "share": 0.5})
    await register(plane, 1)
    live = plane.deps.live.value["models"]["tiny"]
    assert (live["live"], live["arms"]) == ("tiny", [["tiny@1", "candidate", 0.5]])
    got = [await pin(plane, f"e{i}") for i in range(40)]
    assert {(g["adapter"], g["arm"]) for g in got} == {("tiny", "live"), ("tiny@1", "candidate")}


async def _is(plane, n: int, wanted: str) -> bool:
    return (await state(plane, n))["state"] == wanted
