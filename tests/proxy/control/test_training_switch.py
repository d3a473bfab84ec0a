from __future__ import annotations

from tests.support.leases import lease as lease_of
from tests.support.plane import until

from slipstream_proxy.control.observe import boards as training_switch


async def test_nothing_is_handed_out_while_training_is_paused(make_plane, monkeypatch):
    monkeypatch.setattr(training_switch, "REMEMBERED", 0.0)
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
    assert line["blocks"] and "a new reward is coming" in line["text"] and "slipstream resume" in line["fix"]
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
