from __future__ import annotations

from slipstream_proxy.control.observe import activity
from slipstream_proxy.control.observe.activity import SidecarActivity


def test_a_sidecar_that_never_asked_gets_time_from_the_start_on(monkeypatch):
    seen = SidecarActivity()
    assert not seen.ever("judge") and not seen.away("judge")
    seen.started -= activity.SIDECAR_TIMEOUT_S + 1
    assert seen.away("judge") and seen.silence("judge") > activity.SIDECAR_TIMEOUT_S
    seen.seen("judge")
    assert seen.ever("judge") and not seen.away("judge")
    assert seen.away("trainer")
    seen.engine_up = float("inf")
    assert not seen.away("trainer"), "it waits for an engine, and nobody has to start it"


async def test_asking_for_work_shows_that_it_runs(plane):
    assert (await plane.ask("POST", "/groups/lease", {"worker": "j"}))[0] == 204
    assert plane.deps.activity.ever("judge") and not plane.deps.activity.ever("trainer")
    r = await plane.client.post("/slipstream/v1/batches/lease", json={"worker": "t"}, headers=plane.as_())
    assert r.status == 204 and plane.deps.activity.ever("trainer")
