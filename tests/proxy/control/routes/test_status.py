from __future__ import annotations

import json

from tests.support.plane import API, until

from slipstream_proxy.data.observe.losses import LossCount


async def test_events_are_replayed_and_followed(plane):
    for i in range(3):
        assert (await plane.ask("POST", "/training/events", {"kind": "step", "data": {"loss": i * 1.0}}))[0] == 200
    found = [json.loads(x) for x in (await plane.ask("GET", "/training/events"))[1].splitlines()]
    assert [e["data"]["loss"] for e in found] == [0.0, 1.0, 2.0]
    rest = (await plane.ask("GET", f"/training/events?after={found[0]['id']}"))[1].splitlines()
    assert len(rest) == 2
    async with plane.client.get(API + f"/training/events?after={found[2]['id']}&follow=true", headers=plane.as_()) as r:
        await plane.ask("POST", "/training/events", {"kind": "skipped"})
        line = b"\n"
        while line == b"\n":
            line = await r.content.readline()
        assert json.loads(line)["kind"] == "skipped"


async def test_status_says_why_there_was_no_step(plane):
    await plane.call("e1")
    await plane.seen("e1")
    status, body = await plane.ask("GET", "/status")
    assert (status, body["models"], body["calls"], body["steps"]) == (200, {"tiny": "tiny"}, 1, 0)
    assert any("needed for a step" in w for w in body["waiting"])
    plane.engine.up = False
    await until(lambda: not plane.deps.live.value["engines"][0]["ok"])
    assert (await plane.ask("GET", "/status"))[1]["waiting"][0].startswith(
        "no engine answers: calls fail → see the log of "
    )


async def test_sql_reads_and_nothing_else(plane, tmp_path):
    await plane.call("e1")
    await plane.seen("e1")
    status, body = await plane.ask("POST", "/sql", {"query": "select episode from calls limit 5"})
    assert status == 200, body
    for query in (
        "drop view calls",
        "select * from read_text('/etc/passwd')",
        f"copy (select 1) to '{tmp_path}/x'",
        "select 1; select 2",
        "selec",
    ):
        status, body = await plane.ask("POST", "/sql", {"query": query})
        assert (status, body["error"]["field"]) == (409, "body.query"), query
    assert not (tmp_path / "x").exists()


async def test_success_by_adapter(plane):
    await plane.call("e1")
    await plane.seen("e1")
    await plane.ask("POST", "/episodes/e1/rewards", {"value": 1.0})
    rows = (await plane.ask("GET", "/success"))[1]["rows"]
    assert [(r["adapter"], r["arm"], r["episodes"], r["mean"]) for r in rows] == [("tiny", "live", 1, 1.0)]


async def test_status_counts_what_the_workers_could_not_write(plane):
    folder = plane.config.root / "metrics"
    for n, lost in enumerate((2, 3)):
        LossCount(folder, n).add(lost, OSError())
    (folder / "lost2").write_text("half a fi")
    assert (await plane.ask("GET", "/status"))[1]["capture_lost"] == 5


async def test_a_key_reads_nothing_of_anothers_calls_in_the_causes(plane):
    said = {"error": {"message": "cannot parse the SECRET of two", "type": "x"}, "choices": []}
    for n in range(4):
        await plane.call(f"e{n}", key="two", status=400, outcome="error", answer=said, done=True)
    await until(lambda: _failing(plane, "two", ["viewer"]))
    for key, scopes in (("one", ["inference", "reward"]), ("judge", ["judge"])):
        status, body = await plane.ask("GET", "/status", key=key, scopes=scopes)
        assert status == 200 and "SECRET" not in json.dumps(body)
        assert any("calls fail" in line for line in body["waiting"])


async def _failing(plane, key, scopes):
    return "SECRET" in json.dumps((await plane.ask("GET", "/status", key=key, scopes=scopes))[1]["waiting"])
