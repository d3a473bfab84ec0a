"""A trial follows what people, engines and other proxies decide."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import pytest
from tests.support.registry import adapter, registry

from slipstream_proxy.assignment import Assignment, assign
from slipstream_proxy.control.adapters.trials import GateTrials
from slipstream_proxy.control.gate.rules import Decision, outcome_of
from slipstream_proxy.store.values import Outcome


class Kept:
    """The part of a store that a trial is kept in."""

    def __init__(self) -> None:
        self.values: dict[str, dict] = {}
        self.cache = self.outcomes = self

    def get(self, key: str):
        return self.values.get(key)

    def name_of(self, seq: int):
        return ["-/e", True] if seq == 5 else None

    def place(self, model: str, seq: int, name) -> int:
        return 7 if name == ["-/e", True] else seq

    def last(self, model: str, count: int) -> int:
        return 17


def test_a_candidate_is_tried_accepted_and_followed():
    r = registry(holdout=0.1)
    trials = GateTrials(r)
    assert trials.arms("tiny") == []
    r.put([adapter(1, "candidate")])
    assert trials.arms("tiny") == [("tiny", "control", 0.3)]
    r.put([adapter(1, "live")])
    assert trials.of("tiny").control == 1 and trials.arms("tiny") == [("tiny", "best", 0.1)]
    r.put([adapter(2, "candidate")])
    assert [(a.adapter, a.arm) for a in trials.arms("tiny")] == [("tiny@1", "control"), ("tiny", "best")]
    r.put([adapter(2, "rolled_back")])
    trial = trials.of("tiny")
    assert (trial.tried, trial.floor) == (1, 2)


def test_those_who_go_first_have_the_plans_first_stage_to_themselves():
    r = registry(mode="canary", plan=[0.01, 0.1], first=["key=friends", "tag.team=us"])
    trials = GateTrials(r)
    r.put([adapter(1, "candidate")])
    assert trials.arms("tiny") == [("tiny@1", "candidate", 0.5)]
    assert trials.first("tiny") == ["key=friends", "tag.team=us"]
    trials.of("tiny").silent = True
    assert trials.arms("tiny") == [("tiny@1", "candidate", 0.1)]
    trials.of("tiny").runs.own = 16
    assert trials.arms("tiny") == [("tiny@1", "candidate", 0.1)] and trials.first("tiny") == []


def test_a_person_who_promotes_an_older_version_begins_a_new_question(tmp_path):
    r = registry()
    r.config.data_dir = str(tmp_path)
    trials = GateTrials(r)
    (r.config.adapters_dir / "tiny@1").mkdir(parents=True)
    r.put([adapter(1, "retired"), adapter(3, "live")])
    trials.of("tiny")
    r.put([adapter(1, "live", best=True), adapter(3, "retired")])
    trial = trials.of("tiny")
    assert (trial.control, trial.best, trial.tried) == (1, 1, 1) and trials.arms("tiny") == []


@pytest.mark.parametrize("lacking", ["tiny@1", "tiny@2"])
def test_while_a_compared_adapter_is_served_by_no_engine_nobody_is_assigned(lacking):
    """Its episodes would move to the base model and not count, and those of the other arm would."""
    r, missing = registry(holdout=0.1), {lacking}
    trials = GateTrials(r, lambda adapter: adapter not in missing)
    r.put([adapter(1, "live"), adapter(2, "candidate")])
    assert trials.arms("tiny") == []
    missing.clear()
    assert {a.adapter for a in trials.arms("tiny")} >= {"tiny@1", "tiny"}


def test_an_arm_that_cannot_be_served_gets_nothing():
    r = registry()
    trials = GateTrials(r)
    r.put([adapter(1, "live"), adapter(2, "candidate")])
    r.given_up.add("tiny@1")
    assert [a.adapter for a in trials.arms("tiny")] == ["tiny"]


@pytest.mark.parametrize(("mode", "holdout"), [("manual", 0.1), ("guard", 0.0)])
def test_where_the_gate_does_not_decide_nothing_waits(mode, holdout):
    r = registry(mode, holdout=holdout, pace=1)
    r.put([adapter(1, "candidate")])
    assert not GateTrials(r).waits("tiny")


def test_with_a_pace_of_one_the_next_waits_and_the_report_names_it():
    r = registry(pace=1)
    r.put([adapter(1, "candidate"), adapter(2, "loading")])
    trials = GateTrials(r)
    assert trials.waits("tiny")
    assert trials.report("tiny").waiting == ["tiny@2"]


def test_it_is_kept_and_read_again_and_what_cannot_be_read_begins_again():
    r, kept = registry(), Kept()
    r.put([adapter(1, "candidate")])
    trials = GateTrials(r)
    trials.begin("tiny", 5, 9.0, trials.of("tiny"))
    trials.of("tiny").observe(outcome_of(1, "live", "live=0.7 control=0.3", "", 1.0))
    change = trials.change(kept, "tiny", trials.kept("tiny"), 0.0)  # type: ignore[arg-type]
    kept.values[change["key"]] = change["value"]
    cursor, at, trial = GateTrials(r).read(kept, "tiny")  # type: ignore[arg-type]
    assert (cursor, at, trial.dump()) == (7, 9.0, trials.of("tiny").dump())
    kept.values["gate/tiny"] = {"cursor": 5, "trial": {"versions": []}}
    cursor, _, trial = GateTrials(r).read(kept, "tiny")  # type: ignore[arg-type]
    assert (cursor, trial.runs.seen) == (17, 0)


def test_runs_that_wait_are_read_again_after_a_restart_and_count_once():
    """The first run goes on after the second one has ended: nothing is counted, so both are read again."""
    r, kept = registry(), Kept()
    r.put([adapter(1, "candidate")])
    chances = "live=0.7 control=0.3 tried=tiny@1"
    rows = [
        Outcome(21, "tiny@1", "live", chances, "", None, 1.0, "a"),
        Outcome(22, "tiny", "control", chances, "", None, 2.0, "b"),
        Outcome(23, "tiny", "control", chances, "t", 1.0, 3.0, "b"),
    ]
    trials = GateTrials(r)
    trials.begin("tiny", 20, 0.0, trials.of("tiny"))
    for row in rows:
        trials.feed("tiny", row)
    assert trials.next("tiny", 3.0) is None and trials.counted("tiny") == 20
    change = trials.change(kept, "tiny", trials.kept("tiny"), 0.0)  # type: ignore[arg-type]
    kept.values[change["key"]] = change["value"]
    again = GateTrials(r)
    again.begin("tiny", *again.read(kept, "tiny"))  # type: ignore[arg-type]
    assert again.cursors["tiny"] == 20
    for row in [*rows, Outcome(24, "tiny@1", "live", chances, "t", 0.0, 4.0, "a")]:
        again.feed("tiny", row)
    taken = [again.next("tiny", 4.0), again.next("tiny", 4.0)]
    assert [(o.version, o.reward, o.seconds) for o in taken if o] == [(1, 0.0, 3.0), (0, 1.0, 1.0)]
    assert again.next("tiny", 4.0) is None and again.counted("tiny") == 24


def won(coin: random.Random, chance: float) -> float:
    return float(coin.random() < chance)


class Feed:
    """A run a second, through the trial as the gatekeeper feeds it."""

    def __init__(self, registry, seed: int = 1) -> None:
        self.registry, self.trials, self.coin = registry, GateTrials(registry), random.Random(seed)
        self.now, self.seq = 1e9, 0
        self.ends: list[tuple[float, int, Assignment, float]] = []
        self.decisions: list[Decision] = []
        self.trials.begin("tiny", 0, 0.0, self.trials.of("tiny"))

    def runs(self, count: int, draw: Callable[[str, random.Random], tuple[float, float]]) -> None:
        """``draw``: of an adapter → (reward, seconds). Until there is a verdict."""
        for _ in range(count):
            self.now += 1.0
            while self.ends and self.ends[0][0] <= self.now:
                at, run, got, reward = heapq.heappop(self.ends)
                self.put(run, got, reward, at)
            if self.decisions:
                return
            self.seq += 1
            got = assign(self.registry.live("tiny"), self.trials.arms("tiny"), "k", None, f"e{self.seq}")
            reward, seconds = draw(got.adapter, self.coin)
            heapq.heappush(self.ends, (self.now + seconds, self.seq, got, reward))
            self.put(self.seq, got, None, self.now)

    def put(self, run: int, got: Assignment, reward: float | None, at: float) -> None:
        self.seq += 1
        self.trials.feed("tiny", Outcome(self.seq, got.adapter, got.arm, got.chances, "", reward, at, f"k/e{run}"))
        while (seen := self.trials.next("tiny", at)) is not None:
            if (decision := self.trials.of("tiny").observe(seen)) is not Decision.UNDECIDED:
                self.decisions.append(decision)


def test_a_deadline_that_short_runs_have_set_does_not_blind_the_gate():
    feed = Feed(registry(holdout=0.1))
    feed.runs(12, lambda _, c: (1.0, 2.0))  # somebody tries it
    feed.runs(400, lambda _, c: (won(c, 0.7), 300.0))
    feed.registry.put([adapter(1, "candidate")])
    feed.runs(4000, lambda a, c: (won(c, 0.1 if "@" in a else 0.7), 300.0))
    assert feed.decisions[:1] == [Decision.ROLLBACK]


@pytest.mark.parametrize("seed", range(3))
def test_equal_versions_whose_failures_end_at_once_stay(seed: int):
    """While the deadline is that of the control's quick runs, successes of both are late, and failures are not."""

    def draw(name: str, coin: random.Random) -> tuple[float, float]:
        reward = won(coin, 0.6)
        quick = coin.random() < 0.3 if "@" not in name else not reward and coin.random() < 0.75
        return reward, 2.0 if quick else 150.0

    feed = Feed(registry(holdout=0.1), seed)
    feed.runs(300, draw)
    feed.registry.put([adapter(1, "candidate")])
    feed.runs(3000, draw)
    assert Decision.ROLLBACK not in feed.decisions


def test_after_a_rollback_what_serves_again_is_compared_with_the_best_version():
    feed = Feed(registry(holdout=0.1))
    for state in ([], [adapter(1, "candidate")], [adapter(1, "live")], [adapter(1, "live"), adapter(2, "candidate")]):
        feed.registry.put(state)
        feed.trials.of("tiny")
        feed.runs(100, lambda _, c: (won(c, 0.7), 5.0))
    feed.registry.put([adapter(1, "live"), adapter(2, "rolled_back")])
    feed.trials.of("tiny")
    feed.runs(4000, lambda a, c: (won(c, 0.0 if a == "tiny@1" else 0.7), 5.0))
    assert feed.decisions[:1] == [Decision.ROLLBACK_BEST]


@pytest.mark.parametrize(("share", "holdout"), [(0.95, 0.1), (0.85, 0.3), (0.99, 0.5)])
def test_a_large_canary_leaves_the_accepted_version_runs_to_be_compared_with(share: float, holdout: float):
    feed = Feed(registry(mode="canary", share=share, holdout=holdout))
    feed.registry.put([adapter(1, "live")])
    feed.trials.of("tiny")
    feed.runs(100, lambda _, c: (won(c, 0.9), 5.0))
    feed.registry.put([adapter(1, "live"), adapter(2, "candidate")])
    assert sum(a.share for a in feed.trials.arms("tiny")) < 1.0
    feed.runs(12_000, lambda a, c: (won(c, 0.0 if a == "tiny@2" else 0.9), 5.0))
    assert feed.decisions[:1] == [Decision.ROLLBACK]
