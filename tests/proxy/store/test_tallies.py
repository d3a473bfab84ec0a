"""Conformance: what is kept is what would be counted, whatever happens in whatever order."""

from __future__ import annotations

import json
import random
from contextlib import contextmanager

import pytest
from tests.support.records import NOW, call, done, group, mutation, reward, want
from tests.support.store_writes import take_ack, take_scores

from slipstream.contract import BatchAck, GroupLeaseIn, Score, ScoresIn
from slipstream_proxy.store.read.status import StoreStatistics
from slipstream_proxy.store.tables import memory
from slipstream_proxy.store.tables.driver import IN
from slipstream_proxy.store.tables.tallies import COUNTS_SQL, MOST_ROWS, KeptCount
from slipstream_proxy.store.values import EpisodeFilter


def check(store):
    with store.db.read() as tx:
        kept = store.tallies._sums(tx)
        counted = store.tallies.counted(tx)
    assert {key: t.n for key, t in kept.items()} == {key: t.n for key, t in counted.items()}
    for key, tally in counted.items():
        assert kept[key].x == pytest.approx(tally.x, abs=1e-6), key
        assert kept[key].y == pytest.approx(tally.y, abs=1e-6), key
        if tally.low is not None:
            assert kept[key].low <= tally.low and kept[key].high >= tally.high, "a forgotten one may be the first"


def check_figures(store, now):
    """What status and metrics get is what somebody finds who has not looked before, and what the rows say."""
    found = store.statistics
    fresh = StoreStatistics(store.db, store.rules, found.pace, store.tallies, store.rewards)
    assert found.counts(now) == fresh.counts(now)
    funnel = found.funnel("judge", now)
    assert funnel == fresh.funnel("judge", now)
    assert found.success_by_adapter() == fresh.success_by_adapter()
    assert found.rewards_by_source() == fresh.rewards_by_source()
    sql = """SELECT adapter, count(*), avg(reward), coalesce(var_samp(reward), 0) FROM t_episodes
        WHERE split = 'train' AND state <> 'deleted' AND reward IS NOT NULL AND adapter LIKE 'm@%' GROUP BY 1 ORDER BY 1"""
    with store.db.read() as tx:
        rows = tx.all(sql)
    told = [(f"m@{s.version}", s.n, s.mean, s.variance) for s in funnel.standing if s.version]
    assert [t[:2] for t in told] == [r[:2] for r in rows]
    for mine, theirs in zip(told, rows, strict=True):
        assert mine[2:] == pytest.approx(theirs[2:], abs=1e-6)


class Life:
    """A store's, at random: three tasks, two keys, four names of rewards and sources."""

    def __init__(self, store, seed):
        self.store, self.random, self.now = store, random.Random(seed), NOW

    def name(self):
        return f"{self.random.choice('abcdefgh')}{self.random.randrange(3)}"

    def record(self):
        r, name, key = self.random, self.name(), self.random.choice(["-", "k"])
        match r.randrange(6):
            case 0 | 1:
                return call(
                    name,
                    at=self.now,
                    key=key,
                    task=r.choice([None, "t1", "t2"]),
                    done=r.random() < 0.2,
                    adapter=r.choice([None, "m@1", "m@2"]),
                    split=r.choice(["train", "train", "eval"]),
                    outcome=r.choice(["ok", "ok", "ok", "aborted"]),
                    attempt=r.randrange(2),
                    body_hash=r.choice(["", "same"]),
                )
            case 2 | 3:
                source = r.choice(["agent", "judge", "human"])
                return reward(name, r.random(), at=self.now, key=key, name=r.choice(["reward", "style"]), source=source)
            case 4:
                return done(name, at=self.now, key=key)
            case _:
                return mutation("delete" if r.random() < 0.3 else "blank", {"key": key, "episode": name}, at=self.now)

    def step(self):
        store, r = self.store, self.random
        self.now += r.choice([0.1, 1.0, 30.0, 1000.0])
        match r.randrange(9):
            case 0:
                store.sweep(self.now)
            case 1:
                store.forget([("-", self.name()), ("k", self.name())], self.now)
            case 2:
                got = store.judging.lease(GroupLeaseIn(worker="j", names=["reward"], singles=True), self.now)
                for one in got.groups if got else ():
                    scores = [
                        Score(episode=e.episode.id, name="reward", value=r.random(), source="judge")
                        for e in one.episodes
                        if not e.context
                    ]
                    take_scores(store, one.id, ScoresIn(lease=got.lease, scores=scores), self.now)
            case 3:
                got = store.batches.lease(want(), {}, 0, self.now)
                if got is not None:
                    take_ack(
                        store, got.id, BatchAck(lease=got.lease, outcome=r.choice(["trained", "released"])), self.now
                    )
            case _:
                store.ingest([self.record() for _ in range(r.randrange(1, 12))], {})


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_kept_is_counted_after_anything(store, seed, monkeypatch):
    monkeypatch.setattr(memory, "CHEAP_CPU_S", float("inf"))
    life = Life(store, seed)
    for n in range(40):
        life.step()
        check_figures(store, life.now)
        if n % 4 == 0:
            check(store)
    check(store)


def test_figures_are_looked_up_once_while_nothing_is_written(store, monkeypatch):
    store.ingest([*group("t1"), call("b", adapter="m@1")], {})
    asked = []
    read = store.db.read

    def ask():
        asked.clear()
        store.statistics.funnel("judge", NOW)
        store.statistics.counts(NOW)
        return len(asked)

    @contextmanager
    def noted():
        with read() as tx:
            all_ = tx.all
            tx.all = lambda *args: asked.append(args[0]) or all_(*args)
            yield tx

    monkeypatch.setattr(store.db, "read", noted)
    first = ask()
    assert first > 8
    assert ask() == (first if store.shared else 0)
    store.ingest([reward("b", 0.5)], {})
    assert ask() > 8


def test_a_batch_that_fails_leaves_no_trace_and_another_program_finds_the_same(opened):
    store = opened()
    store.ingest([*group("t1"), call("b", adapter="m@1")], {})
    with pytest.raises(ValueError, match="unknown kind"):
        store.ingest([call("c"), reward("b", 0.25), mutation("nonsense", {})], {})
    check(store)
    before = store.statistics.success_by_adapter()
    store.close()
    again = opened()
    check(again)
    assert again.statistics.success_by_adapter() == before


def test_a_restored_episode_and_a_dropped_day(store):
    store.ingest([*group("t1", 3), call("torn", outcome="aborted", at=NOW + 86_400)], {})
    found = [e.model_dump(mode="json") for page in store.episodes.export(EpisodeFilter()) for e in page]
    for n, episode in enumerate(found):
        episode["id"] = f"again{n}"
        for number, one in enumerate(episode["call_list"]):
            one["id"] = f"again{n}-{number}"
        days = ["2027-01-15", "2027-01-16"]
        data = {"key": "-", "episode": episode["id"], "days": days, "text": json.dumps(episode)}
        store.ingest([mutation("episode", data)], {})
    check(store)
    counts = store.statistics.counts(NOW)
    assert counts["calls"] == 8 and counts["rewards"] == {"agent": 6} and sum(counts["untrainable"].values()) == 2
    for day in store.archive.days():
        store.archive.drop(day)
    check(store)
    assert store.statistics.counts(NOW)["untrainable"] == {}


def test_what_is_appended_is_summed_up(store):
    def rows() -> int:
        with store.db.read() as tx:
            return tx.all("SELECT count(*) FROM t_tallies")[0][0]

    for n in range(MOST_ROWS // 40):  # a transaction appends rows for each of its versions
        store.ingest([call(f"e{n}-{version}", adapter=f"m@{version}") for version in range(32)], {})
        store.ingest([reward(f"e{n}-{version}") for version in range(32)], {})
    assert rows() > MOST_ROWS
    store.sweep(NOW + 60)
    assert rows() < MOST_ROWS
    check(store)


def test_a_change_of_the_weights_counts_again(opened):
    store = opened(weights={"reward": 1.0})
    store.ingest([call("a", adapter="m@1"), reward("a", 0.5), reward("a", 1.0, name="style")], {})
    store.close()
    other = opened(weights={"reward": 1.0, "style": 1.0})
    check(other)
    assert other.statistics.success_by_adapter()[0]["mean"] == 1.5


def test_the_spread_is_that_of_the_sample():
    values = [0.1, 0.4, 0.9]
    tally = KeptCount(3, sum(values), sum(v * v for v in values))
    assert tally.mean == pytest.approx(1.4 / 3) and tally.spread == pytest.approx(0.4041452)
    assert KeptCount(1, 0.3, 0.09).spread == 0.0


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_counted_as_the_query_counts_them(store, seed):
    life = Life(store, seed)
    for _ in range(12):
        store.ingest([life.record() for _ in range(15)], {})
        life.now += 60
    with store.db.read() as tx:
        eids = [eid for (eid,) in tx.all("SELECT eid FROM t_episodes ORDER BY eid")]
        for some in (eids, eids[::2], eids[:1], []):
            sql = COUNTS_SQL.format(which=f"eid {IN}")
            rows = tx.all(sql, [some] * COUNTS_SQL.count("{which}"))
            mine = store.tallies.counted_of(tx, some)
            theirs = {(name, label): KeptCount(int(n), *rest) for name, label, n, *rest in rows}
            assert mine.keys() == theirs.keys()
            for key, tally in theirs.items():
                assert mine[key] == pytest.approx(tally, abs=1e-9), key
