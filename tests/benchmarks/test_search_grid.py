"""Many searches at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "curves"))

from search import arguments
from search_grid import lines_of, run_all, table

GRID = """
# what is tried
default: words,mail 0,1   # both
wide: words 0 --groups 16 --set trainer.loss=grpo
"""


def test_a_line_is_a_run_for_each_task_and_seed() -> None:
    assert lines_of(GRID) == [
        "default words --seed 0",
        "default mail --seed 0",
        "default words --seed 1",
        "default mail --seed 1",
        "wide words --seed 0 --groups 16 --set trainer.loss=grpo",
    ]
    assert lines_of(GRID, ["wide", "mail"]) == [
        "default mail --seed 0",
        "default mail --seed 1",
        "wide words --seed 0 --groups 16 --set trainer.loss=grpo",
    ]


def test_the_grid_of_the_project_can_be_read() -> None:
    text = (Path(__file__).resolve().parents[2] / "benchmarks" / "curves" / "search.txt").read_text()
    lines = lines_of(text)
    assert len(lines) == len({tuple(line.split()[:4]) for line in lines}), "two runs write into one file"
    for line in lines:
        assert arguments(line.split()[1:]).task


def test_the_worst_seed_counts() -> None:
    runs = [
        {"name": "a", "task": "words", "gain_late": 0.5},
        {"name": "a", "task": "words", "gain_late": 0.3},
        {"name": "a", "task": "mail", "gain_late": 0.7},
        {"name": "b", "task": "mail", "failed": "…"},
    ]
    assert table(runs) == {"a": {"words": 0.3, "mail": 0.7, "all": 0.5}}


@pytest.mark.slow
def test_it_runs_them_and_says_which_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = tmp_path / "grid.txt"
    small = "--steps 1 --groups 4 --size 2 --held-out 4 --device cpu"
    grid.write_text(f"good: tictactoe 0 {small}\nbad: tictactoe 0 {small} --set trainer.loss=nothing\n")
    assert run_all(grid, [], jobs=2, limit=250, out=tmp_path / "out") == 1
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(told["table"]) == ["good"]
    assert [run["name"] for run in told["failed"]] == ["bad"]
    assert "trainer.loss" in told["failed"][0]["failed"]
    kept = json.loads((tmp_path / "out" / "good-tictactoe-0.json").read_text())
    assert len(kept["curve"]) == 2
