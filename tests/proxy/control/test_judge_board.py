"""The copies of the judge, and the judge's queue, in ``GET status``."""

from __future__ import annotations

from tests.support.plane import until

REPORT = {"worker": "j1", "names": ["judge"], "model": "openai/x", "groups_per_minute": 30.0, "working": 2}


async def test_a_report_is_answered_with_the_queue_and_stands_in_status(make_plane):
    plane = await make_plane(groups={"size": 2})
    for n in range(4):
        await plane.call(f"e{n}", task=f"t{n // 2}", done=True)

    async def waiting():
        status, body = await plane.ask("POST", "/judge/report", REPORT)
        assert status == 200
        return body if body["groups"] == 2 else None

    body = await until(waiting)
    assert body["oldest_seconds"] >= 0 and body["parked"] == 0
    status, body = await plane.ask("GET", "/status")
    judging = body["judging"]
    assert [j["worker"] for j in judging["judges"]] == ["j1"] and judging["judges"][0]["model"] == "openai/x"
    assert judging["backlog"]["groups"] == 2 and judging["seconds_behind"] == 4.0


async def test_a_budget_that_is_spent_is_named_with_the_time_when_it_starts_again(make_plane):
    plane = await make_plane(groups={"size": 2}, judge={"model": "openai/x"})
    for n in range(2):
        await plane.call(f"e{n}", task="t", done=True)
    spent = REPORT | {"waits_for": "judge.dollars_per_day", "waits_until": plane.deps.now() + 3600}
    await plane.ask("POST", "/judge/report", spent)

    async def line():
        _, body = await plane.ask("GET", "/status")
        return next((x for x in body["funnel"]["lines"] if x["cause"] == "budget"), None)

    found = await until(line)
    assert "judge.dollars_per_day" in found["text"] and found["fix"].startswith("raise judge.dollars_per_day")
    await plane.ask("POST", "/judge/report", REPORT | {"worker": "j2"})
    assert await line() is None, "another copy may work"


async def test_a_copy_that_reports_no_more_is_gone(make_plane):
    plane = await make_plane()
    board = plane.deps.judges
    await plane.ask("POST", "/judge/report", REPORT)
    now = plane.deps.now()
    assert [j.worker for j in board.judges(now)] == ["j1"]
    assert board.judges(now + 61) == []


async def test_only_a_judge_may_report(make_plane):
    plane = await make_plane()
    status, _ = await plane.ask("POST", "/judge/report", REPORT, scopes=["reward"])
    assert status == 403
    status, body = await plane.ask("POST", "/judge/report", REPORT | {"names": []})
    assert status == 422 and "names" in str(body)
