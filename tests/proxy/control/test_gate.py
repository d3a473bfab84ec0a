from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_proxy.control import gate

ROWS = st.lists(
    st.tuples(st.sampled_from(["t1", "t2", "t3"]), st.sampled_from(["new", "old", "else"]), st.floats(-3, 3)),
    max_size=80,
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(ROWS, st.integers(2, 6))
def test_what_was_seen_stays_seen(rows, block):
    """Looking again with more data only adds differences: the test may be peeked at."""
    whole = gate.differences(rows, "new", "old", block)
    for n in range(len(rows)):
        part = gate.differences(rows[:n], "new", "old", block)
        assert part == whole[: len(part)]
    assert np.all(np.abs(gate.scaled(whole)) <= 1)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.floats(-1, 1), max_size=60))
def test_wealth_is_finite_and_begins_at_one(values):
    wealth = gate.log_wealth(np.array(values))
    assert np.all(np.isfinite(wealth))
    if values and values[0] == 0:
        assert abs(wealth[0]) < 1e-12


def test_differences_by_hand():
    rows = [
        ("a", "new", 1.0),
        ("a", "old", 0.0),
        ("b", "new", 1.0),
        ("a", "new", 0.0),
        ("b", "new", 1.0),
        ("b", "new", 0.0),
        ("a", "else", 9.0),
    ]
    assert gate.differences(rows, "new", "old", 3) == [0.5]  # b has no control
    assert gate.differences(rows, "new", "old", 2) == [1.0]


def test_a_task_that_has_gone_quiet_counts_too():
    rows = [("a", "new", 1.0), ("a", "old", 0.5), *((f"x{i}", "new", 1.0) for i in range(40))]
    assert gate.differences(rows, "new", "old", 8) == [0.5]


def simulate(rng, tasks: int, better: float, share: float = 0.25, block: int = 8) -> list[gate.Row]:
    """Runs of tasks of differing difficulty, some under the control adapter, success 0 or 1."""
    rows: list[gate.Row] = []
    for t in range(tasks):
        chance = rng.uniform(0.2, 0.8)
        for _ in range(block):
            old = rng.random() < share
            rows.append(
                (
                    f"t{t}",
                    "old" if old else "new",
                    float(rng.random() < (chance if old else np.clip(chance + better, 0, 1))),
                )
            )
    return rows


def decisions(better: float, runs: int, tasks: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    judged = (
        gate.judge(simulate(rng, tasks, better), "new", "old", alpha=0.05, min_pairs=8, block=8, max_episodes=10**9)
        for _ in range(runs)
    )
    return [v.decision for v in judged]


def test_equal_adapters_are_rarely_taken_back(monkeypatch):
    """Judged at its worst moment over 200 tasks, 200 times: no more often than alpha."""
    monkeypatch.setattr(gate, "interval", lambda *_: (-1.0, 1.0))
    assert decisions(0.0, 200, 200, 0).count("rollback") <= 0.05 * 200


def test_worse_adapters_are_taken_back(monkeypatch):
    monkeypatch.setattr(gate, "interval", lambda *_: (-1.0, 1.0))
    assert decisions(-0.2, 60, 200, 1).count("rollback") >= 54


def test_better_adapters_are_accepted_and_never_taken_back(monkeypatch):
    monkeypatch.setattr(gate, "interval", lambda *_: (-1.0, 1.0))
    found = decisions(0.2, 60, 200, 2)
    assert found.count("accept") >= 54
    assert found.count("rollback") == 0


def test_far_worse_ones_are_rarely_accepted(monkeypatch):
    monkeypatch.setattr(gate, "interval", lambda *_: (-1.0, 1.0))
    assert decisions(-0.15, 100, 200, 3).count("accept") <= 5


def test_the_interval_holds_the_mean_and_shrinks():
    rng = np.random.default_rng(4)
    missed = 0
    for _ in range(40):
        d = rng.choice([-1.0, 0.0, 1.0], size=200, p=[0.2, 0.5, 0.3])
        low, high = gate.interval(d, 0.05)
        missed += not low <= 0.1 <= high
        assert high - low < 0.7
    assert missed <= 2
    assert gate.interval(np.zeros(0), 0.05) == (-1.0, 1.0)


def test_few_pairs_decide_nothing_and_many_episodes_accept():
    worse = [(f"t{i}", a, r) for i in range(7) for a, r in (("new", 0.0), ("old", 1.0))]
    assert gate.judge(worse, "new", "old", alpha=0.05, min_pairs=8, block=2, max_episodes=100).decision == "undecided"
    alike = [(f"t{i}", a, 1.0) for i in range(10) for a in ("new", "old")]
    assert gate.judge(alike, "new", "old", alpha=0.05, min_pairs=8, block=2, max_episodes=10).decision == "accept"
