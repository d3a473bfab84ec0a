"""One trainer learns for a model, by the control API: who waits is named, who was away is refused, files are uploaded."""

from __future__ import annotations

import hashlib
import json

import aiohttp
from tests.support.adapters import write_adapter
from tests.support.plane import API, until

from slipstream_proxy.control.status.status import MetricsScrape


def be(plane, name: str, token: str, *, seconds: float = 30.0, known=()):
    body = {"worker": name, "place": f"{name}:/data", "token": token, "known": list(known), "seconds": seconds}
    return plane.ask("POST", "/learner", body)


async def group(plane, task: str) -> None:
    for n in range(2):
        await plane.call(f"{task}-{n}", task=task)
        await plane.seen(f"{task}-{n}")
        await plane.ask("POST", f"/episodes/{task}-{n}/rewards", {"value": float(n)})


async def lease(plane, token: str | None):
    body = {"worker": "w", "model": "tiny", "learner": token, "min_groups": 1, "max_wait": 0.0}
    r = await plane.client.post(f"{API}/batches/lease", json=body, headers=plane.as_())
    return r.status, r.headers.get("x-slipstream-batch"), r.headers.get("x-slipstream-lease")


def hash_of(folder) -> str:
    return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()


async def test_a_second_trainer_waits_and_is_named_and_the_first_is_refused_after_it(make_plane):
    plane = await make_plane(groups={"size": 2}, gate={"holdout": 0.0})
    now = 1000.0
    plane.deps.now = lambda: now
    assert (await be(plane, "a", "ta"))[1]["held"]
    status, waits = await be(plane, "b", "tb")
    assert (status, waits["held"], waits["worker"]) == (200, False, "a")
    _, told = await plane.ask("GET", "/status")
    assert told["learners"][0]["worker"] == "a" and told["learners"][0]["waiting"][0]["place"] == "b:/data"
    line = next(x for x in told["funnel"]["lines"] if x["cause"] == "waits")
    assert line["stage"] == "trainer" and "b:/data" in line["text"] and line["fix"]
    metrics = MetricsScrape(plane.deps)
    await metrics._look()
    assert b'slipstream_trainers_waiting{model="tiny"} 1.0' in await metrics.text()
    write_adapter(plane.config.adapters_dir / "tiny@1")
    now = 1031.0
    assert (await be(plane, "b", "tb"))[1]["held"]
    post = {"path": "tiny@1", "learner": "ta"}
    status, body = await plane.ask("POST", "/adapters", post)
    assert (status, body["error"]["field"]) == (409, "body.learner")
    assert "b at b:/data" in body["error"]["message"] and body["error"]["fix"]
    assert (await plane.ask("POST", "/adapters/claim", {"learner": "ta"}))[0] == 409
    assert (await lease(plane, "ta"))[0] == (await lease(plane, None))[0] == 409
    assert (await lease(plane, "tb"))[0] == 204
    assert (await plane.ask("POST", "/learner", {"worker": "c", "token": "tc", "model": "other"}))[0] == 404


async def test_what_the_first_had_comes_back_and_what_it_published_does_not(make_plane):
    plane = await make_plane(groups={"size": 2}, gate={"holdout": 0.0})
    assert (await be(plane, "a", "ta"))[1]["held"]
    had = {}
    for task in ("published", "stepped", "leased"):
        await group(plane, task)
        had[task] = await until(lambda: leased_by(plane, "ta"))
    write_adapter(plane.config.adapters_dir / "tiny@1")
    made = {"path": "tiny@1", "step": 1, "batches": [had["published"][0]], "learner": "ta"}
    assert (await plane.ask("POST", "/adapters?wait=30", made))[0] == 201
    ack = {"lease": had["stepped"][1], "outcome": "trained", "step": 2, "learner": "ta"}
    assert (await plane.ask("POST", f"/batches/{had['stepped'][0]}/ack", ack))[0] == 200
    await be(plane, "a", "ta", seconds=0.0)
    assert (await be(plane, "b", "tb"))[1]["held"]
    late = {"lease": had["leased"][1], "outcome": "trained", "step": 3, "learner": "ta"}
    status, body = await plane.ask("POST", f"/batches/{had['leased'][0]}/ack", late)
    assert status == 409
    again = await leased_by(plane, "tb")
    assert again and (await lease(plane, "tb"))[0] == 204
    _, batch = await plane.ask("GET", f"/batches/{again[0]}")
    assert {e["episode"].rpartition("-")[0] for e in batch["episodes"]} == {"stepped", "leased"}
    _, first = await plane.ask("GET", f"/batches/{had['published'][0]}")
    assert (first["state"], first["adapter"]) == ("trained", "tiny@1")


async def leased_by(plane, token: str):
    status, batch, held = await lease(plane, token)
    return (batch, held) if status == 200 else None


async def test_a_large_file_comes_in_parts_and_goes_on_where_it_broke_off(plane, tmp_path):
    folder = write_adapter(tmp_path / "mine")
    weights, sha256 = (folder / "adapter_model.safetensors").read_bytes(), hash_of(folder)
    where = f"{API}/adapters/uploads/{sha256}"

    async def put(offset: int, data: bytes) -> int:
        r = await plane.client.put(f"{where}?offset={offset}", data=data, headers=plane.as_())
        assert r.status == 200
        return (await r.json())["bytes"]

    assert await put(7, weights[7:]) == 0, "a hole is not written"
    assert await put(0, weights[:100]) == 100
    assert await put(0, weights[:50]) == 100, "a part that comes again takes nothing away"
    assert await put(100, weights[100:]) == len(weights)

    def form(said: dict) -> aiohttp.FormData:
        data = aiohttp.FormData()
        data.add_field("adapter", json.dumps(said), content_type="application/json")
        data.add_field("config", (folder / "adapter_config.json").read_bytes(), filename="adapter_config.json")
        return data

    said = {"path": "tiny@1", "sha256": sha256}
    r = await plane.client.post(f"{API}/adapters?wait=30", data=form(said), headers=plane.as_())
    assert (r.status, (await r.json())["state"]) == (201, "live")
    assert sorted(p.name for p in plane.config.adapters_dir.iterdir()) == ["tiny@1"]
    r = await plane.client.get(f"{API}/adapters/tiny@1/files/adapter_model.safetensors", headers=plane.as_())
    assert r.status == 200 and await r.read() == weights
    r = await plane.client.post(f"{API}/adapters", data=form(said | {"sha256": "0" * 64}), headers=plane.as_())
    assert (r.status, (await r.json())["error"]["field"]) == (422, "body.adapter.sha256")
    status, body = await plane.ask("POST", "/adapters/try", {"path": ".tmp-not-here"})
    assert (status, body["error"]["field"]) == (404, "body.path") and "adapters.dir" in body["error"]["fix"]


async def test_a_folder_of_another_writer_is_not_taken_for_ones_own(plane, tmp_path):
    mine = write_adapter(tmp_path / "mine", fill=1)
    write_adapter(plane.config.adapters_dir / "tiny@1", fill=2)
    status, body = await plane.ask("POST", "/adapters", {"path": "tiny@1", "sha256": hash_of(mine)})
    assert (status, body["error"]["field"]) == (409, "body.sha256")
    assert (await plane.ask("GET", "/adapters"))[1]["adapters"] == [], "nothing is refused for ever"
    _, claimed = await plane.ask("POST", "/adapters/claim", {})
    assert claimed["name"] == "tiny@2", "a folder's name is nobody's"
