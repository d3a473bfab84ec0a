"""The status object is whole whatever is away."""

from __future__ import annotations

import json

import pytest
from tests.support.plane import until

from slipstream.contract import Sidecar
from slipstream_proxy.control.status import lost_by_workers, read_funnel, status_of, surroundings_of


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


@pytest.mark.parametrize("broken", ["", "{", '{"at": 1}', "[]"])
def test_a_broken_file_of_a_worker_counts_for_nothing(tmp_path, broken):
    values = [["slipstream_capture_lost_total", "", 2.0], ["slipstream_calls_total", "", 9.0]]
    good = {"at": 1.0, "parts": [{"values": values, "histograms": []}]}
    (tmp_path / "data0.json").write_text(json.dumps(good))
    (tmp_path / "data1.json").write_text(broken)
    assert lost_by_workers(tmp_path) == 2
    assert lost_by_workers(tmp_path / "none") == 0
