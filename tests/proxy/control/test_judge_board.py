"""The copies of the judge, and the judge's queue, in ``GET status``."""

from __future__ import annotations

from dataclasses import replace

from tests.support.plane import until

from slipstream_proxy.control.status.causes.surroundings import Surroundings
from slipstream_proxy.control.status.funnel import funnel_of

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


async def test_what_a_copy_said_when_it_failed_is_forgotten_with_an_episode(plane):
    await plane.call("e1", done=True)
    await plane.seen("e1")
    failed = REPORT | {"last_error": "no number: secret words"}
    for _ in range(2):
        await plane.ask("POST", "/judge/report", failed)
    assert "secret words" in str(await plane.ask("GET", "/status"))
    assert (await plane.ask("DELETE", "/episodes/e1"))[0] == 200
    await plane.ask("POST", "/judge/report", failed)
    assert "secret" not in str(await plane.ask("GET", "/status"))
    await plane.ask("POST", "/judge/report", REPORT | {"last_error": "another"})
    assert "another" in str(await plane.ask("GET", "/status"))


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


async def test_a_judge_that_fails_names_its_error_and_not_its_speed_until_a_group_is_scored(make_plane):
    judge = {"model": "openai/x"}
    plane = await make_plane(groups={"size": 2}, judge=judge, reward={"weights": {"judge": 1.0}})
    for n in range(2):
        await plane.call(f"e{n}", task="t", done=True)
    await plane.ask("POST", "/judge/report", REPORT | {"failed": 2, "last_error": "no model x is served"})

    async def lines():
        _, body = await plane.ask("GET", "/status")
        found = {x["cause"]: x for x in body["funnel"]["lines"] if x["stage"] == "judge"}
        return found if "waiting" in found else None

    found = await until(lines)
    now = plane.deps.now()
    plane.deps.now = lambda: now + 59
    plane.deps.judges._reports["j1"].at = now + 59
    found = await lines()
    assert "no model x is served" in found["failing"]["text"] and found["failing"]["severity"] == "blocks"
    assert "judge.model" in found["failing"]["fix"] and found["waiting"]["fix"] is None
    await plane.ask("POST", "/judge/report", REPORT | {"failed": 2, "scored": 1})
    assert "failing" not in await lines()


async def test_groups_that_a_failing_judge_lost_name_its_error(make_plane):
    plane = await make_plane()
    counts = await plane.deps.ask(plane.deps.store.statistics.funnel, "judge", plane.deps.now())
    said = "no model x is served"
    counts = replace(counts, lost={("stale", "judge"): 3}, failures={"lost": said, "parked": said}, parked=2)
    around = Surroundings(config=plane.deps.config, now=0.0, judge_expected=True)
    (lost,) = [line for line in funnel_of(counts, around).lines if line.stage == "lost"]
    assert said in lost.text and "judge.model" in lost.fix and "concurrency" not in lost.fix
    (parked,) = [line for line in funnel_of(counts, around).lines if line.cause == "parked"]
    assert said in parked.text and "judge retry" in parked.fix


async def test_a_judge_whose_votes_do_not_agree_is_said_to_guess(make_plane):
    plane = await make_plane(judge={"model": "openai/x"})
    guess = {"by_chance": True, "between_votes": {"value": 0.03, "pairs": 40}}
    await plane.ask("POST", "/judge/report", REPORT | guess)
    _, body = await plane.ask("GET", "/status")
    (line,) = [x for x in body["funnel"]["lines"] if x["cause"] == "chance"]
    assert "0.03 over 40 groups" in line["text"] and "larger judge.model" in line["fix"]
