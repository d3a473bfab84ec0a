"""The bench of the gate in all hard worlds: what it plays first, and what is left of a call that was killed."""

from __future__ import annotations

import importlib
import math
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("SLIPSTREAM_COMPILED", "0")  # to compile the gate takes a minute
    return importlib.import_module("benchmarks.gate.all_worlds")


def test_equal_worlds_come_first_and_all_worlds_get_some_runs_before_one_gets_many(bench: ModuleType) -> None:
    equal, worlds = bench.EQUAL_WORLDS, bench.WORLDS
    names = bench.in_turn(list(worlds))
    assert set(names[: len(equal)]) == set(equal)
    planned = list(bench.tasks(names, 1000, 200, set()))
    some = len(worlds) * bench.FIRST_RUNS // 10
    assert {name for name, _ in islice(planned, some)} == set(worlds)
    assert len(planned) == len(set(planned)) == 100 * len(equal) + 20 * (len(worlds) - len(equal))


def test_a_call_goes_on_where_one_was_killed_while_it_wrote(bench: ModuleType, tmp_path: Path) -> None:
    runs = [bench.Played(math.inf, frozen=False, accepted=1, lost=0.0, rescaled=0, evidence=-2.0)] * 10
    kept, (name, other) = tmp_path / "runs", list(bench.WORLDS)[:2]
    killed = bench.Progress(None, kept)
    killed.add(name, 0, runs)
    killed.add(other, 10, runs)
    whole = kept.read_text()
    kept.write_text(whole[:-5])

    later = bench.Progress(None, kept)
    assert later.done() == {(name, 0)}
    assert list(bench.tasks([name], 20, 20, later.done())) == [(name, 10)]
    later.add(name, 10, runs)
    assert bench.Progress(None, kept).figures() == later.figures()
    assert later.figures()[name]["runs"] == 20
