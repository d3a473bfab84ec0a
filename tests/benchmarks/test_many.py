"""Many runs at once: each has its place, what ended is kept at once, and nothing runs on behind the limit."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.curves.many import Planned, Slot, command, keep, run_all, slots

RUNS = [Planned("words", "reward", seed) for seed in range(5)]


def test_runs_are_spread_over_gpus_and_cores() -> None:
    found = slots(6, 2, range(16))
    assert [slot.gpu for slot in found] == [0, 1, 0, 1, 0, 1]
    assert [len(slot.cores) for slot in found] == [2] * 6
    assert len(frozenset().union(*(slot.cores for slot in found))) == 12
    assert found[0].memory == 0.2


def test_more_runs_than_cores_share_them() -> None:
    assert [slot.cores for slot in slots(3, 0, range(2))] == [frozenset({0, 1})] * 3
    assert slots(3, 0, range(2))[0].gpu is None


def test_only_a_gpu_s_memory_is_divided(tmp_path: Path) -> None:
    run = RUNS[0]
    assert "engine.gpu_memory=0.2" in command(run, Slot(0, frozenset({0}), 0.2), tmp_path, ["--minutes", "7"])
    assert command(run, Slot(None, frozenset({0}), 0.2), tmp_path, ["--minutes", "7"])[-2:] == ["--minutes", "7"]


def test_a_run_that_ended_is_kept_and_one_without_a_file_is_not(tmp_path: Path) -> None:
    made = tmp_path / "words-reward-0" / "curves" / "words-reward-0.json"
    made.parent.mkdir(parents=True)
    made.write_text("{}")
    assert keep(RUNS[0], tmp_path)
    assert [path.name for path in (tmp_path / "curves").iterdir()] == ["words-reward-0.json"]
    assert not (tmp_path / "words-reward-0").exists()
    assert not keep(RUNS[1], tmp_path)


def test_a_long_run_is_kept_under_its_own_name(tmp_path: Path) -> None:
    made = tmp_path / RUNS[0].name / "curves"
    made.mkdir(parents=True)
    (made / "retail-long-0.json").write_text("{}")
    assert keep(RUNS[0], tmp_path)
    assert (tmp_path / "curves" / "retail-long-0.json").is_file()


def sleeping(seconds: float) -> subprocess.Popen[bytes]:
    code = f"import time; time.sleep({seconds})"
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True)


def test_each_place_has_one_run_at_a_time() -> None:
    places, busy, seen = slots(2, 0, range(2)), {}, []

    def start(run: Planned, place: Slot) -> subprocess.Popen[bytes]:
        assert place not in busy or busy[place].poll() is not None
        busy[place] = sleeping(0.1)
        return busy[place]

    run_all(RUNS, [Slot(n, places[0].cores, 0.1) for n in range(2)], start, seen.append, 60, stagger=0)
    assert sorted(run.seed for run in seen) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("limit", [0.5, 1.5])
def test_nothing_runs_behind_the_limit(limit: float) -> None:
    began, seen = time.monotonic(), []
    places = [Slot(n, frozenset({0}), 0.1) for n in range(2)]
    run_all(RUNS, places, lambda *_: sleeping(30), seen.append, limit, stagger=0)
    assert time.monotonic() - began < 10
    assert len(seen) == 2
