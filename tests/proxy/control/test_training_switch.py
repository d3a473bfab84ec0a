from __future__ import annotations

import time

import pyarrow as pa
import pytest
from tests.support.leases import first_lease, group_of
from tests.support.leases import lease as lease_of
from tests.support.plane import until

from slipstream.settings import TrainerConfig
from slipstream.settings.trainer import ScheduleConfig


async def test_nothing_is_handed_out_while_training_is_paused(make_plane, monkeypatch):
    for module in ("training_switch", "schedule"):
        monkeypatch.setattr(f"slipstream_proxy.control.observe.{module}.SWITCH_CACHE_S", 0.0)
    plane = await make_plane(groups={"size": 2})
    for n in range(2):
        await plane.call(f"e{n}", task="t", done=True)
        await plane.ask("POST", f"/episodes/e{n}/rewards", {"value": float(n)})
    lease = {"worker": "w1", "min_groups": 1, "max_groups": 4, "max_wait": 0}

    async def ready():
        return (await plane.ask("GET", "/status"))[1]["groups"].get("ready")

    await until(ready)
    status, body = await plane.ask("POST", "/training/pause", {"reason": "a new reward is coming"})
    assert (status, body["paused"], body["by"], body["reason"]) == (200, True, "-", "a new reward is coming")
    assert (await plane.ask("POST", "/batches/lease", lease))[0] == 204
    _, status_ = await plane.ask("GET", "/status")
    (line,) = [x for x in status_["funnel"]["lines"] if x["cause"] == "paused"]
    assert (
        line["severity"] == "blocks" and "a new reward is coming" in line["text"] and "slipstream resume" in line["fix"]
    )
    await plane.again()
    assert (await plane.ask("GET", "/training/paused"))[1]["paused"] is True
    assert (await plane.ask("POST", "/batches/lease", lease))[0] == 204
    assert (await plane.ask("POST", "/training/resume"))[1]["paused"] is False
    assert (await lease_of(plane)).status == 200
    _, page = await plane.ask("GET", "/audit")
    assert [e["action"] for e in page["entries"]] == ["resume", "pause"]
    _, marks = await plane.ask("GET", "/annotations")
    assert [m["kind"] for m in marks["annotations"]] == ["pause", "resume"]


async def test_pausing_twice_keeps_the_first(plane):
    first = (await plane.ask("POST", "/training/pause", {"reason": "one"}))[1]
    assert (await plane.ask("POST", "/training/pause", {"reason": "two"}))[1] == first
    assert (await plane.ask("POST", "/training/pause", {}, scopes=["inference"]))[0] == 403


def at(hour: int, minute: int = 0, days: int = 0) -> float:
    return time.mktime((2027, 3, 10 + days, hour, minute, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("hours", "now", "opens"),
    [
        ("22:00-06:00", at(23), None),
        ("22:00-06:00", at(5, 59), None),
        ("22:00-06:00", at(6), at(22)),
        ("22:00-06:00", at(12), at(22)),
        ("09:00-10:00, 12:30-13:00", at(11), at(12, 30)),
        ("09:00-10:00", at(10), at(9, days=1)),
        (None, at(3), None),
    ],
)
def test_hours_are_those_of_the_clock(hours, now, opens):
    assert ScheduleConfig(hours=hours).opens(now) == (now if opens is None else opens)


@pytest.mark.parametrize("hours", ["22-6", "25:00-06:00", "22:00-06:00,x", "", " ", ",", "22:00-06:00,"])
def test_hours_that_nobody_can_read(hours):
    with pytest.raises(ValueError, match='write hours as "22:00-06:00"'):
        TrainerConfig.model_validate({"schedule": hours})


def test_hours_when_the_clock_is_put_forward_or_back(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        for hours, before, opens, shuts in (
            ("02:30-03:30", (2026, 3, 29, 1, 0), (2026, 3, 29, 3, 0), (2026, 3, 29, 3, 30)),
            ("02:15-02:45", (2026, 3, 28, 3, 0), (2026, 3, 30, 2, 15), (2026, 3, 30, 2, 45)),
            ("03:00-04:00", (2026, 10, 25, 1, 0), (2026, 10, 25, 3, 0), (2026, 10, 25, 4, 0)),
        ):
            now, first, last = (time.mktime((*t, 0, 0, 0, -1)) for t in (before, opens, shuts))
            schedule = ScheduleConfig(hours=hours)
            assert schedule.opens(now + 7) == first == schedule.opens(first)
            assert schedule.opens(last - 1) == last - 1 and schedule.opens(last) > last
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_by_day_nothing_is_handed_out_and_what_waited_is_not_stale_at_night(make_plane, monkeypatch):
    for module in ("training_switch", "schedule"):
        monkeypatch.setattr(f"slipstream_proxy.control.observe.{module}.SWITCH_CACHE_S", 0.0)
    plane = await make_plane(groups={"size": 2}, trainer={"schedule": "22:00-06:00"})
    schedule, opens = plane.deps.schedule, time.time() + 7200.0
    monkeypatch.setattr(ScheduleConfig, "opens", lambda self, now: max(now, opens))
    await group_of(plane, "t", [0.0, 1.0])
    assert (await lease_of(plane)).status == 204
    _, status = await plane.ask("GET", "/status")
    (line,) = [x for x in status["funnel"]["lines"] if x["cause"] == "schedule"]
    assert line["severity"] == "blocks" and time.strftime("%H:%M", time.localtime(opens)) in line["text"]
    assert abs(line["count"] - 7200) < 60
    assert "slipstream_training_schedule_seconds 7" in (await (await plane.client.get("/internal/metrics")).text())
    plane.deps.rollout.registry.versions = lambda model: ({}, 99)  # so many versions later
    monkeypatch.setattr(ScheduleConfig, "opens", lambda self, now: now)
    leased = await first_lease(plane)
    table = pa.ipc.open_stream(await leased.read()).read_all()
    assert table["trainable"].to_pylist() == [True, True] and set(table["staleness"].to_pylist()) == {99}
    await group_of(plane, "late", [0.0, 1.0])
    assert (await lease_of(plane)).status == 204, "what comes while it is open is as old as its version"
    assert (await schedule.state(plane.deps)).open


async def test_an_idle_engine_and_minutes_a_day(make_plane, monkeypatch):
    for module in ("training_switch", "schedule"):
        monkeypatch.setattr(f"slipstream_proxy.control.observe.{module}.SWITCH_CACHE_S", 0.0)
    plane = await make_plane(groups={"size": 2}, trainer={"schedule": {"idle": 30.0, "minutes": 2.0}})
    schedule, busy = plane.deps.schedule, [True]

    async def is_busy() -> bool:
        return busy[0]

    schedule.busy = is_busy
    now = time.time() + 100.0
    monkeypatch.setattr(plane.deps, "now", lambda: now, raising=False)
    found = await schedule.state(plane.deps)
    assert (found.open, found.at) == (False, now + 30.0) and "not idle" in found.why
    busy[0], now = False, now + 29.0
    assert not (await schedule.state(plane.deps)).open
    now += 2.0
    assert (await schedule.state(plane.deps)).open
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    assert (await plane.ask("POST", "/import", {"id": "i1", "messages": talk}))[0] in (200, 201)
    await plane.seen("i1")
    assert (await schedule.state(plane.deps)).open, "an imported run was never in the engine"
    await plane.call("own", done=True, at=now - 3.0)
    await plane.seen("own")
    assert not (await schedule.state(plane.deps)).open
    now += 60.0
    for seconds in (-1000.0, 1e308, "x", True):
        wrong = {"kind": "step", "at": now, "data": {"seconds": seconds}}
        status, said = await plane.ask("POST", "/training/events", wrong)
        assert (status, said["error"]["field"]) == (422, "body.data.seconds")
    assert (await schedule.state(plane.deps)).open
    event = {"kind": "step", "at": now, "data": {"seconds": 121.0}}
    assert (await plane.ask("POST", "/training/events", event))[0] in (200, 201)
    found = await schedule.state(plane.deps)
    assert not found.open and "2 of 2 minutes" in found.why and found.at > now


async def test_a_tenant_s_tokens_of_a_day_end_its_training_softly_and_status_names_the_quota(make_plane, monkeypatch):
    for module in ("training_switch", "schedule"):
        monkeypatch.setattr(f"slipstream_proxy.control.observe.{module}.SWITCH_CACHE_S", 0.0)
    plane = await make_plane(groups={"size": 2}, quota={"trained_tokens_per_day": 100})
    await group_of(plane, "t", [0.0, 1.0])
    event = {"kind": "step", "at": plane.deps.now(), "data": {"seconds": 1.0, "tokens": 99}}
    assert (await plane.ask("POST", "/training/events", event))[0] in (200, 201)
    leased = await first_lease(plane)
    assert leased.status == 200, "less than the quota is spent: the batch may be beyond it"
    assert (await plane.ask("POST", "/training/events", event))[0] in (200, 201)
    await group_of(plane, "u", [0.0, 1.0])
    assert (await lease_of(plane)).status == 204
    _, status = await plane.ask("GET", "/status")
    (line,) = [x for x in status["funnel"]["lines"] if x["cause"] == "schedule"]
    assert "quota.trained_tokens_per_day is 100" in line["text"]
    found = await plane.deps.schedule.state(plane.deps)
    assert found.at % 86_400 == 0 and 0 < found.at - plane.deps.now() <= 86_400, "until midnight UTC"
