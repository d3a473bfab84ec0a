"""The curve and its picture."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from common.demo.curve import LearningCurve, StepPoint, VersionPoint, plot, read_curve, steps_of, version_of
from tests.support.server import Reply, Seen, Server

from slipstream.contract import Event


@pytest.mark.parametrize(("name", "version"), [("inbox", 0), ("inbox@1", 1), ("a@b@12", 12)])
def test_versions_in_order(name: str, version: int) -> None:
    assert version_of(name) == version


def serve(server: Server, rows: list, whole: list, events: list[Event]) -> None:
    def sql(seen: Seen) -> Reply:
        grouped = "group by" in seen.json["query"]
        return Reply({"columns": [], "rows": rows if grouped else [whole]})

    server.routes["POST", "/sql"] = sql
    server.on("GET", "/training/events", "".join(e.model_dump_json() + "\n" for e in events))


async def test_the_curve_in_the_versions_order_with_errors_and_counts(server: Server) -> None:
    rows = [["inbox@10", 0.9, 0.3, 100, 160.0], ["inbox@2", 0.5, None, 1, 130.0], ["inbox", 0.3, 0.4, 64, 110.0]]
    step = Event(at=120.0, kind="step", data={"adapter": "inbox@1", "entropy": 0.5, "kl": None})
    serve(server, rows, [0.45, 100.0], [Event(at=101.0, kind="adapter"), step])
    curve = await read_curve(server.url, "inbox")
    assert [(p.version, p.mean, p.count, p.at) for p in curve.versions] == [
        (0, 0.3, 64, 10.0),
        (2, 0.5, 1, 30.0),
        (10, 0.9, 100, 60.0),
    ]
    assert [p.error for p in curve.versions] == pytest.approx([0.05, 0.45, 0.03]), "one episode has the run's spread"
    assert curve.steps == [StepPoint(1, 20.0, 0.5, None)]


async def test_a_run_without_episodes_has_an_empty_curve(server: Server) -> None:
    serve(server, [], [None, None], [])
    assert await read_curve(server.url, "inbox") == LearningCurve("inbox")


def test_only_steps_are_steps() -> None:
    events = [Event(at=5.0, kind="step", data={"kl": True}), Event(at=6.0, kind="rollback")]
    assert steps_of(events, 1.0) == [StepPoint(0, 4.0, None, None)]


def test_a_step_keeps_the_figures_that_explain_a_plateau() -> None:
    data = {
        "adapter": "inbox@3",
        "kl": 0.002,
        "staleness": 1.5,
        "tokens": 800,
        "groups_dropped": 2,
        "parent": "inbox@2",
    }
    (step,) = steps_of([Event(at=5.0, kind="step", data=data)], 1.0)
    assert step == StepPoint(3, 4.0, None, 0.002, {"groups_dropped": 2.0, "staleness": 1.5, "tokens": 800.0})


@pytest.mark.parametrize("axis", ["version", "time"])
@pytest.mark.parametrize("versions", [0, 1, 60])
def test_the_plot_is_a_small_picture(tmp_path: Path, versions: int, axis: str) -> None:
    points = [VersionPoint(v, 1 - math.exp(-v / 9), 0.03, 5 + 3 * (v % 7), 7.0 * v) for v in range(versions)]
    steps = [StepPoint(v, 7.0 * v, 1 / (v + 1), 0.001 * v if v % 5 else None) for v in range(versions)]
    path = tmp_path / "success.png"
    plot(LearningCurve("inbox", points, steps, [(0.3, 0.02, 256), (0.97, 0.01, 256)], 1.0), path, axis=axis)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size < 60_000
