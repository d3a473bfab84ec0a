"""The status object is whole whatever is away."""

from __future__ import annotations

import errno

from tests.support.plane import until

from slipstream.contract import Sidecar
from slipstream_proxy.control.status.status import read_funnel, status_of, surroundings_of
from slipstream_proxy.data.observe.losses import LossCount


def stages(funnel):
    return [line.stage for line in funnel.lines]


async def test_it_names_the_first_thing_that_is_missing(plane):
    status = await status_of(plane.deps)
    assert (status.calls, status.steps, status.capture_lost) == (0, 0, 0)
    assert "calls" in stages(status.funnel)
    assert status.waiting == [line.sentence for line in status.funnel.lines]


async def test_it_counts_what_came(plane):
    await plane.call("e1")
    await plane.call("e1", done=True)

    async def done():  # the second call may be stored after the first
        return (await plane.seen("e1"))["state"] == "done"

    await until(done)
    status = await status_of(plane.deps)
    assert (status.calls, sum(status.episodes.values())) == (2, 1)
    assert status.models == {"tiny": "tiny"}


async def test_it_answers_without_a_store_and_says_so(plane, monkeypatch):
    monkeypatch.setattr(plane.deps.stores, "current", None)
    funnel = await read_funnel(plane.deps)
    assert stages(funnel)[0] == "store"
    status = await status_of(plane.deps)
    assert (status.calls, status.episodes) == (0, {})
    assert "store" in stages(status.funnel)


async def test_an_engine_that_is_down_is_the_first_line(plane):
    plane.engine.up = False
    await until(lambda: not plane.deps.engines.engines[0].ok)
    funnel = await read_funnel(plane.deps)
    assert (funnel.lines[0].stage, funnel.lines[0].blocks) == ("engine", True)


async def test_a_sidecar_in_trouble_is_told(plane):
    down = Sidecar.model_validate(
        {"name": "judge", "state": "restarting", "starts": 3, "since": 1.0, "reason": "no model"}
    )
    assert surroundings_of(plane.deps, []).sidecars == []
    ((name, state, text),) = surroundings_of(plane.deps, [down]).sidecars
    assert (name, state) == ("judge", "restarting")
    assert text


async def test_what_a_full_disk_costs_is_told_apart(plane, monkeypatch):
    """Calls that were answered are lost. A reward that was refused is not: its sender knows."""
    monkeypatch.setattr(plane.deps.mutations.writer, "_write", lambda _: (0, OSError(errno.ENOSPC, "full")))
    for _ in range(3):
        assert (await plane.ask("POST", "/episodes/e1/rewards", {"value": 1.0}))[0] == 503
    only = [line.cause for line in (await read_funnel(plane.deps)).lines if line.cause in ("lost", "refused")]
    assert only == ["refused"], "rewards alone are told, too"
    LossCount(plane.config.root / "metrics", 0).add(2, OSError(errno.ENOSPC, "full"))
    status = await status_of(plane.deps)
    assert (status.capture_lost, status.refused_writes) == (2, 3)
    told = {line.cause: (line.count, line.text) for line in status.funnel.lines if line.cause in ("lost", "refused")}
    assert {cause: count for cause, (count, _) in told.items()} == {"lost": 2, "refused": 3}
    assert told["lost"][1].endswith("No space left on device")
