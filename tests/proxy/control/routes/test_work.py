from __future__ import annotations

import asyncio

import pyarrow as pa
from tests.support.leases import LEASE, first_lease, group_of, lease
from tests.support.plane import until


async def test_a_batch_is_arrow_and_acked_once(make_plane):
    plane = await make_plane(groups={"size": 2})
    await group_of(plane, "t", [0.0, 1.0])
    r = await first_lease(plane)
    table = pa.ipc.open_stream(await r.read()).read_all()
    assert table.num_rows == 2
    assert sorted(table["reward"].to_pylist()) == [0.0, 1.0]
    assert table["completion_ids"].to_pylist() == [[4, 5], [4, 5]]
    batch, held = r.headers["x-slipstream-batch"], r.headers["x-slipstream-lease"]
    assert float(r.headers["x-slipstream-until"]) > plane.deps.now()
    assert (await lease(plane)).status == 204
    ack = {"lease": held, "outcome": "trained", "adapter": "tiny@1", "step": 1, "advantages": {"t-0": -1.0, "t-1": 1.0}}
    assert (await plane.ask("POST", f"/batches/{batch}/ack", {**ack, "lease": "other"}))[0] == 409
    assert (await plane.ask("POST", f"/batches/{batch}/ack", ack))[0] == 200
    assert (await lease(plane)).status == 204
    detail = await plane.seen("t-1")
    assert detail["advantage"] == 1.0
    assert detail["batches"] == [batch]


async def test_a_released_batch_comes_back(make_plane):
    plane = await make_plane(groups={"size": 2})
    await group_of(plane, "t", [0.0, 1.0])
    await first_lease(plane)
    status, body = await plane.ask("POST", "/leases/release", {"worker": "w1"})
    assert (status, body["released"]) == (200, 1)
    assert (await lease(plane)).status == 200


async def test_the_judge_scores_a_group(make_plane):
    plane = await make_plane(groups={"size": 2}, reward={"weights": {"judge": 1.0}})
    names = await group_of(plane, "t", [None, None])

    async def get():
        status, body = await plane.ask("POST", "/groups/lease", {"worker": "j1"})
        return body if status == 200 else None

    leased = await until(get)
    group = leased["groups"][0]
    assert [e["episode"]["id"] for e in group["episodes"]] == names
    scores = [{"episode": n, "value": i * 1.0, "reason": "so"} for i, n in enumerate(names)]
    body = {"lease": leased["lease"], "scores": scores}
    assert (await plane.ask("POST", f"/groups/{group['id']}/scores", {**body, "lease": "stale"}))[0] == 409
    assert (await plane.ask("POST", f"/groups/{group['id']}/scores", body))[0] == 200
    assert (await plane.ask("POST", "/groups/lease", {"worker": "j1"}))[0] == 204
    assert (await plane.seen(names[1]))["reward"] == 1.0


async def test_a_group_that_fails_too_often_is_parked_and_can_be_tried_again(make_plane):
    plane = await make_plane(groups={"size": 2}, judge={"max_attempts": 1}, reward={"weights": {"judge": 1.0}})
    await group_of(plane, "t", [None, None])

    async def get():
        status, body = await plane.ask("POST", "/groups/lease", {"worker": "j1"})
        return body if status == 200 else None

    leased = await until(get)
    group = leased["groups"][0]["id"]
    assert (await plane.ask("POST", f"/groups/{group}/scores", {"lease": leased["lease"], "failed": "refused"}))[
        0
    ] == 200
    _, parked = await plane.ask("GET", "/groups/parked")
    assert [g["id"] for g in parked["groups"]] == [group]
    assert (await plane.ask("POST", f"/groups/{group}/retry"))[0] == 200
    assert (await plane.ask("GET", "/groups/parked"))[1]["groups"] == []
    assert (await plane.ask("POST", "/groups/nothing/retry"))[0] == 404


async def test_the_judges_cache(plane):
    assert (await plane.ask("GET", "/judge/cache/k1"))[0] == 404
    assert (await plane.ask("PUT", "/judge/cache/k1", {"key": "k1", "value": {"a": 1}}))[0] == 200
    status, body = await plane.ask("GET", "/judge/cache/k1")
    assert (status, body["value"]) == (200, {"a": 1})


async def test_scopes_of_the_workers(plane):
    assert (await plane.ask("POST", "/batches/lease", LEASE, scopes=["judge"]))[0] == 403
    assert (await plane.ask("POST", "/groups/lease", {"worker": "j"}, scopes=["trainer"]))[0] == 403
    assert (await plane.ask("POST", "/batches/lease", LEASE, scopes=["trainer"]))[0] == 204


async def test_batches_are_whole_while_calls_are_written(make_plane):
    """Each leased batch has every call of its groups with its own tokens, however much is written meanwhile."""
    plane = await make_plane(groups={"size": 2})
    stop = asyncio.Event()

    async def load():
        n = 0
        while n < 1600 and not stop.is_set():
            await asyncio.gather(*(plane.call(f"l{n + i}", task=f"other{(n + i) // 2}", done=True) for i in range(16)))
            n += 16
            await asyncio.sleep(0.01)
        return n

    loading = asyncio.create_task(load())
    told = {}
    for t in range(10):
        for i in range(2):
            name = f"e{t}-{i}"
            told[name] = [
                await plane.call(name, task=f"t{t}", text=f"{name} {turn}", done=turn == 2) for turn in range(3)
            ]
            await plane.seen(name)
            await plane.ask("POST", f"/episodes/{name}/rewards", {"value": float(i)})
    found: dict[str, list[str]] = {}

    async def get():
        r = await lease(plane, min_groups=1, max_groups=3, max_wait=0)
        if r.status == 200:
            for row in pa.ipc.open_stream(await r.read()).read_all().to_pylist():
                assert (row["prompt_ids"], row["completion_ids"], row["logprobs"]) == ([1, 2, 3], [4, 5], [-0.5, -0.25])
                assert row["reward"] == float(row["episode"].split("-")[1])
                found.setdefault(row["episode"], []).append(row["call"])
            ack = {"lease": r.headers["x-slipstream-lease"], "outcome": "trained"}
            assert (await plane.ask("POST", f"/batches/{r.headers['x-slipstream-batch']}/ack", ack))[0] == 200
        return len(found) == len(told)

    await until(get, 120)
    stop.set()
    written = await loading
    assert found == told
    await until(lambda: _calls(plane, written + 60), 120)
    assert (await lease(plane, min_groups=1, max_wait=0)).status == 204


async def _calls(plane, count):
    return (await plane.ask("GET", "/status"))[1]["calls"] == count
