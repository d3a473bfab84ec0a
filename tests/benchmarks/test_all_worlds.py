"""The bench of the gate in all hard worlds: what it plays first, and what is left of a call that was killed."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path

from benchmarks.gate.all_worlds import EQUAL_WORLDS, FIRST_RUNS, WORLDS, Played, Progress, in_turn, tasks

RUNS = [Played(math.inf, frozen=False, accepted=1, lost=0.0, rescaled=0, evidence=-2.0)] * 10
NAMES = in_turn(list(WORLDS))


def test_equal_worlds_come_first_and_all_worlds_get_some_runs_before_one_gets_many() -> None:
    assert set(NAMES[: len(EQUAL_WORLDS)]) == set(EQUAL_WORLDS)
    planned = list(tasks(NAMES, 1000, 200, set()))
    some = len(WORLDS) * FIRST_RUNS // 10
    assert {name for name, _ in islice(planned, some)} == set(WORLDS)
    assert len(planned) == len(set(planned)) == 100 * len(EQUAL_WORLDS) + 20 * (len(WORLDS) - len(EQUAL_WORLDS))


def test_a_call_goes_on_where_one_was_killed_while_it_wrote(tmp_path: Path) -> None:
    kept, (name, other) = tmp_path / "runs", NAMES[:2]
    killed = Progress(None, kept)
    killed.add(name, 0, RUNS)
    killed.add(other, 10, RUNS)
    whole = kept.read_text()
    kept.write_text(whole[:-5])

    later = Progress(None, kept)
    assert later.done() == {(name, 0)}
    assert list(tasks([name], 20, 20, later.done())) == [(name, 10)]
    later.add(name, 10, RUNS)
    assert Progress(None, kept).figures() == later.figures()
    assert later.figures()[name]["runs"] == 20
