"""The curve and its picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.server import Server

from slipstream.operate.curve import plot, success_curve, version_of


@pytest.mark.parametrize(("name", "version"), [("inbox", 0), ("inbox@1", 1), ("a@b@12", 12)])
def test_versions_in_order(name: str, version: int) -> None:
    assert version_of(name) == version


async def test_the_curve_in_the_adapters_order(server: Server) -> None:
    rows = [
        ["inbox@10", "train", 0.9, 80],
        ["inbox@2", "train", 0.5, 90],
        ["inbox", "eval", 0.3, 256],
        ["inbox", "train", 0.3, 100],
    ]
    server.on("POST", "/sql", {"columns": ["adapter", "split", "success", "n"], "rows": rows})
    curve = await success_curve(server.url)
    assert [(a, s) for a, s, _, _ in curve] == [
        ("inbox", "eval"),
        ("inbox", "train"),
        ("inbox@2", "train"),
        ("inbox@10", "train"),
    ]


@pytest.mark.parametrize(
    "curve",
    [
        [],
        [("inbox", "train", 0.3, 10)],
        [("inbox", "train", 0.3, 10), ("inbox@1", "eval", 1.0, 256), ("inbox@1", "train", 0.9, 10)],
    ],
)
def test_the_plot_is_a_picture(tmp_path: Path, curve: list[tuple[str, str, float, int]]) -> None:
    path = tmp_path / "success.png"
    plot(curve, 0.3, 0.97, path, 256)
    assert path.read_bytes().startswith(b"\x89PNG")
