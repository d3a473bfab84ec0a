"""A store moves by export and import."""

from __future__ import annotations

import json
import math
import shutil

import pyarrow as pa
import pytest
from tests.support.adapters import write_adapter
from tests.support.fake_engine import LoraEngine
from tests.support.plane import API, Plane, make_config, until

from slipstream_chat.report import Report
from slipstream_imports.forms.datasets.slipstream import exported
from slipstream_imports.rows import read_rows


@pytest.fixture
async def other(tmp_path):
    """Another proxy, with a store and an engine of its own."""
    engine = await LoraEngine().start()
    made = await Plane(make_config(tmp_path / "other", engine, groups={"size": 2}), engine).start()
    yield made
    await made.stop()
    await engine.stop()


async def download(plane, format: str) -> bytes:
    r = await plane.client.get(f"{API}/export?format={format}", headers=plane.as_())
    assert r.status == 200
    return await r.read()


async def work(plane) -> str:
    """Four episodes, one group of them trained on. → Its batch."""
    write_adapter(plane.config.adapters_dir / "tiny@1")
    for task in "ab":
        for i in range(2):
            name = f"{task}{i}"
            await plane.call(
                name, task=task, text="\ud800 odd, and 2**70: 1180591620717411303424", done=True, tags={"k": "v"}
            )
            await plane.seen(name)
            status, _ = await plane.ask(
                "POST", f"/episodes/{name}/rewards", {"value": i + 0.1, "reason": "so", "meta": {"n": 1}}
            )
            assert status == 200
    body = {"worker": "w", "min_groups": 1, "max_groups": 1, "max_wait": 0}

    async def leased():
        r = await plane.client.post(f"{API}/batches/lease", json=body, headers=plane.as_())
        return (r.headers["x-slipstream-batch"], r.headers["x-slipstream-lease"]) if r.status == 200 else None

    batch, lease = await until(leased)
    ack = {"lease": lease, "outcome": "trained", "adapter": "tiny@1", "step": 1, "advantages": {"a0": -0.5, "a1": 0.5}}
    assert (await plane.ask("POST", f"/batches/{batch}/ack", ack))[0] == 200
    status, body = await plane.ask("POST", "/adapters?wait=60", {"path": "tiny@1", "batches": [batch]})
    assert body["state"] == "live"
    return batch


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
async def test_all_of_it_is_there_again(make_plane, other, tmp_path, format):
    plane = await make_plane(groups={"size": 2})
    batch = await work(plane)
    before = await download(plane, "jsonl")
    path = tmp_path / f"all.{format}"
    path.write_bytes(await download(plane, format))
    shutil.copytree(plane.config.adapters_dir, other.config.adapters_dir, dirs_exist_ok=True)
    told = (await plane.ask("GET", "/adapters"))[1]
    assert (await other.ask("POST", "/import/adapters", told)) == (200, {"adapters": 1})
    assert (await other.ask("POST", "/import/adapters", told)) == (200, {"adapters": 0})
    for _ in range(2):
        for _, row, *_ in read_rows(path, Report()):
            status, body = await other.ask("POST", "/import/episode", exported(row))
            assert status == 200, body
    assert await download(other, "jsonl") == before
    first = json.loads(before.splitlines()[-1])["call_list"][0]
    assert (first["prompt_ids"], first["completion_ids"], first["logprobs"]) == ([1, 2, 3], [[4, 5]], [[-0.5, -0.25]])
    assert first["trained"] == "tiny"
    await until(lambda: other.deps.live.value["models"]["tiny"]["live"] == "tiny@1")
    assert "tiny@1" in other.deps.engines.loaded()
    found = await other.seen("a1")
    assert (found["batches"], found["trained_adapters"], found["advantage"]) == ([batch], ["tiny@1"], 0.5)
    body = {"worker": "w", "min_groups": 1, "max_wait": 0}
    r = await other.client.post(f"{API}/batches/lease", json=body, headers=other.as_())
    table = pa.ipc.open_stream(await r.read()).read_all()
    assert set(table["episode"].to_pylist()) == {"b0", "b1"}  # what has trained does not train again
    await other.again()  # and all of it is in its own spool and store
    assert [json.loads(line)["id"] for line in (await download(other, "jsonl")).splitlines()] == [json.loads(line)["id"] for line in before.splitlines()]  # fmt: skip


async def test_refusals(plane):
    await plane.call("e1", done=True)
    await plane.seen("e1")
    row = json.loads(await download(plane, "jsonl"))
    assert await plane.ask("POST", "/import/episode", row) == (
        200,
        {"episode": "e1", "calls": 0, "state": "there", "kept": []},
    )
    strange = {**row, "call_list": [{**row["call_list"][0], "id": "another"}]}
    assert (await plane.ask("POST", "/import/episode", strange))[0] == 409
    assert (await plane.ask("DELETE", "/episodes/e1"))[0] == 200
    assert (await plane.ask("POST", "/import/episode", row))[0] == 409
    assert (await plane.ask("POST", "/import/episode", row, scopes=["trainer", "reward"]))[0] == 403
    for wrong in (
        {"key": "a/b"},
        {"split": "off"},
        {"state": "deleted"},
        {"started": -1},
        {"surprise": 1},
    ):
        status, body = await plane.ask("POST", "/import/episode", {**row, **wrong})
        assert status == 422, (wrong, body)
    for field, endless in (
        ("advantage", {"advantage": math.nan}),
        ("lineage.0.advantage", {"lineage": [{"batch": "b", "outcome": "trained", "advantage": math.inf}]}),
        ("rewards.0.at", {"rewards": [{"episode": "e1", "value": 1.0, "at": math.nan}]}),
    ):
        status, body = await plane.ask("POST", "/import/episode", {**row, **endless})
        assert (status, body["error"]["field"]) == (422, f"body.{field}"), "no number is a number"
    assert (await plane.ask("POST", "/import/episode", {**row, "id": "e2"}))[0] == 409  # its calls are e1's
    huge = {**row["call_list"][0], "prompt_ids": [2**31]}
    status, body = await plane.ask("POST", "/import/episode", {**row, "call_list": [huge]})
    assert (status, body["error"]["field"]) == (422, "body.call_list.0.prompt_ids.0")
    r = await plane.client.post(API + "/import/episode", data=b'{"id": "\\ud800", "x": NaN}', headers={**plane.as_(), "content-type": "application/json"})  # fmt: skip
    assert r.status == 400
    adapter = {"name": "big@1", "model": "big", "version": 1, "state": "live", "created": 1.0, "path": "big@1"}
    status, body = await plane.ask("POST", "/import/adapters", {"adapters": [adapter], "live": {}})
    assert (status, body["error"]["field"]) == (409, "body.adapters")


async def test_what_was_recorded_nested_deeply_comes_back(plane, other):
    """Calls are kept up to 254 levels deep; the import refused those of over 200."""
    deep: object = "end"
    for _ in range(230):
        deep = [deep]
    await plane.call("e1", done=True, request={"tools": [{"type": "function", "function": {"name": "f", "x": deep}}]})
    await plane.seen("e1")
    row = json.loads(await download(plane, "jsonl"))
    assert row["call_list"][0]["tools"][0]["function"]["x"] == deep
    assert (await other.ask("POST", "/import/episode", row))[0] == 200
    assert (await other.seen("e1"))["call_list"][0]["tools"] == row["call_list"][0]["tools"]
    text = json.dumps(row).replace('{"id"', '{"x": ' + "[" * 5000 + "]" * 5000 + ', "id"', 1)
    r = await plane.client.post(
        API + "/import/episode", data=text, headers={**plane.as_(), "content-type": "application/json"}
    )
    assert r.status == 400, "and a bomb of brackets is refused"


async def four(plane) -> None:
    for name in ("a", "b", "c", "d"):
        await plane.call(name, task=name, text="\ud800 odd", done=True)
        await plane.seen(name)


async def test_many_episodes_at_once(plane, other):
    await four(plane)
    lines = [json.loads(line) for line in (await download(plane, "jsonl")).splitlines()]
    status, body = await other.ask("POST", "/import/episodes", {"episodes": lines})
    assert status == 200, body
    assert [e["calls"] for e in body["episodes"]] == [1] * 4
    assert sorted((await download(other, "jsonl")).splitlines()) == sorted(
        (await download(plane, "jsonl")).splitlines()
    )
    status, body = await other.ask("POST", "/import/episodes", {"episodes": lines})
    assert [e["calls"] for e in body["episodes"]] == [0] * 4, "again changes nothing"


async def test_of_many_episodes_all_or_none(plane, other):
    await four(plane)
    lines = [json.loads(line) for line in (await download(plane, "jsonl")).splitlines()]
    broken = [*lines[:2], {**lines[2], "call_list": lines[2]["call_list"] * 2}]
    status, body = await other.ask("POST", "/import/episodes", {"episodes": broken})
    assert (status, body["error"]["field"]) == (409, "body.episodes.2.call_list")
    assert await download(other, "jsonl") == b""
    status, body = await other.ask("POST", "/import/episodes", {"episodes": [lines[0], lines[0]]})
    assert (status, body["error"]["field"]) == (409, "body.episodes")
    dangling = {**lines[0]["call_list"][0], "prefix": {"call": "gone", "messages": 1, "tokens": 0, "tools": False}}
    status, body = await other.ask("POST", "/import/episode", {**lines[0], "call_list": [dangling]})
    assert (status, body["error"]["field"]) == (409, "body.call_list")
