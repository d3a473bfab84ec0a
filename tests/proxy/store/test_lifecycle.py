"""Conformance: how episodes end with time."""

from __future__ import annotations

import random

import pytest
from tests.support.records import NOW, call, done, group, mutation, reward, rules, want
from tests.support.store_writes import pin

from slipstream.contract import GroupLeaseIn
from slipstream_proxy.store.backends.duckdb import DuckStore
from slipstream_proxy.store.values import EpisodeFilter, RewardAsk


def test_an_idle_episode_is_done(opened):
    store = opened(idle_timeout=100)
    store.ingest([call("a"), call("b", at=NOW + 80), reward("a"), reward("b")], {})
    store.sweep(NOW + 101)
    assert [(e.id, e.state) for e in store.episodes.page(EpisodeFilter()).episodes] == [("b", "open"), ("a", "done")]
    store.sweep(NOW + 500)
    assert store.statistics.counts(NOW)["groups"] == {"ready": 1}


def states(store):
    return {e.id: e.state.value for e in store.episodes.page(EpisodeFilter(limit=500)).episodes}


def paced(store, pause: float, *, model: str = "m") -> float:
    """An agent of this pace has done its runs. -> When they were over."""
    items, at = [], NOW
    for run in range(4):
        for _ in range(5):
            items.append(call(f"run{run}", at=at, seconds=0.5, trained=model, origin="new", task=None))
            at += 0.5 + pause
        items.append(done(f"run{run}", at=at))  # type: ignore[arg-type]
    store.ingest(items, {})
    return at


@pytest.mark.parametrize(("pause", "over"), [(0.1, 20.0), (10.0, 40.0), (3000.0, 900.0)])
def test_an_untagged_episode_is_over_after_its_agents_own_pauses(store, pause, over):
    now = paced(store, pause)
    store.ingest([call("last", at=now, seconds=0.5, origin="new", task=None)], {})
    store.sweep(now + over - 1)
    assert states(store)["last"] == "open"
    store.sweep(now + over + 2)
    assert states(store)["last"] == "done"


def test_the_pace_is_known_after_opening_again(opened):
    first = opened()
    now = paced(first, 0.1)
    first.ingest([call("last", at=now, origin="new"), call("tagged", at=now)], {})
    first.close()
    second = opened()
    second.sweep(now + 25)
    assert (states(second)["last"], states(second)["tagged"]) == ("done", "open")
    second.sweep(now + 125)
    assert states(second)["tagged"] == "done"


def tagged_runs(store, count: int, at: float, *, first: int = 0, slow: int | None = None) -> None:
    """Runs that nobody ends, two a second, each of 20 calls with short pauses. `slow`: the one whose tenth pause takes a minute."""
    for run in range(first, first + count):
        begun = at + 0.5 * (run - first)
        starts = [begun + 0.2 * n + (60.0 if run == slow and n >= 10 else 0.0) for n in range(20)]
        store.ingest([call(f"run{run}", at=start, seconds=0.1, task="t", trained="m") for start in starts], {})


def test_runs_of_a_quick_agent_that_nobody_ends_are_over_soon(opened):
    """Tagged, and left to a judge: no reward, no end mark. A group must not wait two minutes for its verdict."""
    store = opened(group_size=8)
    tagged_runs(store, 8, NOW)
    over = NOW + 0.5 * 7 + 4
    store.sweep(over + 15)
    assert states(store)["run7"] == "open"
    store.sweep(over + 21)
    assert set(states(store).values()) == {"done"}
    lease = store.judging.lease(GroupLeaseIn(worker="j", names=["judge"]), over + 21)
    assert [len(found.episodes) for found in lease.groups] == [8]


def test_a_run_whose_tool_is_slow_is_not_over_once_such_a_tool_is_known(opened):
    store = opened(group_size=8)
    tagged_runs(store, 8, NOW, slow=3)
    later = NOW + 200
    tagged_runs(store, 8, later, first=8)
    store.ingest([call("waits", at=later, seconds=0.1, task="t", trained="m")], {})
    store.sweep(later + 85)
    assert states(store)["waits"] == "open"
    store.sweep(later + 95)
    assert states(store)["waits"] == "done", "1.5 times the longest pause"


def test_a_tagged_episode_of_an_unknown_agent_waits_for_the_setting(store):
    paced(store, 0.1, model="another")
    store.ingest([call("tagged"), call("untagged", origin="new")], {})
    store.sweep(NOW + 65)
    assert (states(store)["tagged"], states(store)["untagged"]) == ("open", "done")
    store.sweep(NOW + 902)
    assert states(store)["tagged"] == "done"


def test_an_idle_episode_that_goes_on_is_opened_again(store):
    store.ingest([call("a", origin="new"), call("b", at=NOW + 1, origin="new"), reward("a"), reward("b")], {})
    store.sweep(NOW + 100)
    group = store.episodes.get("-", "a").group
    assert store.statistics.counts(NOW)["groups"] == {"ready": 1}
    store.ingest([call("a", at=NOW + 150, origin="continued")], {})
    found = store.episodes.get("-", "a")
    assert (found.state, found.ended, found.calls, found.group) == ("open", None, 2, group)
    assert store.pins.open() == {"m": 1}
    assert store.batches.lease(want(), {}, 0, NOW + 151) is None, "the group waits for it"
    assert store.judging.lease(GroupLeaseIn(worker="j", names=["judge"]), NOW + 151) is None
    store.ingest([done("a", at=NOW + 160)], {})
    got = store.batches.lease(want(), {}, 0, NOW + 161)
    assert [r["episode"] for r in got.table.to_pylist()] == ["a", "a", "b"]


def test_an_episode_that_is_trained_on_stays_done(store):
    store.ingest([call("a", origin="new"), call("b", origin="new"), reward("a"), reward("b")], {})
    store.sweep(NOW + 100)
    assert store.batches.lease(want(), {}, 0, NOW + 101) is not None
    store.ingest([call("a", at=NOW + 150)], {})
    assert (states(store)["a"], store.episodes.get("-", "a").calls) == ("done", 2)


def test_an_episode_that_was_ended_is_not_opened_again(store):
    store.ingest([call("a"), done("a"), call("a", at=NOW + 5)], {})
    assert states(store)["a"] == "done"
    store.ingest([call("b")], {})
    store.sweep(NOW + 1000)
    store.ingest([done("b", at=NOW + 1001), call("b", at=NOW + 1002)], {})
    assert states(store)["b"] == "done"


def test_where_nobody_else_writes_orphans_are_searched_for_once(opened, url, monkeypatch):
    first = opened(orphan_ttl=100)
    first.ingest([call("a"), reward("a"), reward("nobody")], {})
    first.close()
    store = opened(orphan_ttl=100)
    searched = []
    look = store.rewards.orphans
    monkeypatch.setattr(store.rewards, "orphans", lambda tx: searched.append(1) or look(tx))
    for second in range(0, 200, 20):
        store.sweep(NOW + second)
    assert store.statistics.counts(NOW)["orphans"] == 0
    if url.startswith("duckdb"):
        assert len(searched) == 1
        store.ingest([reward("late", at=NOW + 200)], {})
        assert len(searched) == 1
    assert store.standings.ask([RewardAsk("-", "nobody", None)], NOW)[0].how == "late", "it has expired"


SHORT = {"idle_timeout": 100, "orphan_ttl": 150, "group_max_age": 130, "group_size": 3}
EVERYTHING = """SELECT 'e', eid, state, idle::VARCHAR, grp FROM t_episodes
    UNION ALL SELECT 'g', id, state, n::VARCHAR, cause FROM t_groups
    UNION ALL SELECT 'b', state, count(*)::VARCHAR, NULL, NULL FROM t_batches GROUP BY state
    UNION ALL SELECT 'p', eid, adapter, active::VARCHAR, NULL FROM t_pins
    UNION ALL SELECT 'r', id, eid, NULL, NULL FROM t_rewards
    UNION ALL SELECT 'x', eid, NULL, NULL, NULL FROM t_expired ORDER BY 1, 2, 3"""


class SleepyPair:
    """A store, and one that is told at each sweep that something may have changed."""

    def __init__(self, folder, monkeypatch, seed):
        self.random, self.now = random.Random(seed), NOW
        self.stores = [DuckStore(folder / f"{name}.duckdb", rules(**SHORT)) for name in ("rests", "looks")]
        monkeypatch.setattr(self.stores[1].db, "stand", lambda: None)
        self.writes = 0
        write = self.stores[0].db.write

        def counted(**kw):
            self.writes += 1
            return write(**kw)

        monkeypatch.setattr(self.stores[0].db, "write", counted)

    def record(self):
        r, name = self.random, f"{self.random.choice('abcdefgh')}{int((self.now - NOW) // 300)}"
        match r.randrange(6):
            case 0 | 1 | 2:
                origin = r.choice(["tagged", "new"])
                return call(
                    name, at=self.now, task=r.choice(["t1", "t2"]), adapter=r.choice(["m@1", "m@2"]), origin=origin
                )
            case 3:
                return reward(r.choice([name, "nobody"]), r.random(), at=self.now)
            case 4:
                return done(r.choice([name, f"early{self.now:.0f}"]), at=self.now)
            case _:
                return mutation("delete", {"key": "-", "episode": name}, at=self.now)

    def work(self):
        """What agents, workers and the trainer do."""
        kind, items = self.random.randrange(8), [self.record() for _ in range(self.random.randrange(1, 5))]
        name = f"pin{self.now:.0f}"
        for store in self.stores:
            match kind:
                case 0:
                    pin(store, "-", name, "m", "m@1", "live", self.now)
                case 1:
                    store.batches.lease(want(seconds=40.0), {"m@1": 1, "m@2": 2}, 2, self.now)
                case _:
                    store.ingest(items, {})

    def lease_some(self):
        """The trainer takes a group, and is heard of no more."""
        items = group(f"done{self.now:.0f}", 3, start=self.now, adapter="m@1")
        for store in self.stores:
            store.ingest(items, {})
            assert store.batches.lease(want(seconds=70.0), {"m@1": 1}, 0, self.now) is not None

    def sweep(self):
        self.now += 1
        for store in self.stores:
            store.sweep(self.now)

    def check(self):
        found = []
        for store in self.stores:
            with store.db.read() as tx:
                found.append(tx.all(EVERYTHING))
        assert found[0] == found[1], self.now - NOW


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_what_time_does_is_done_in_the_same_second_in_a_store_at_rest(tmp_path, monkeypatch, seed):
    pair = SleepyPair(tmp_path, monkeypatch, seed)
    for _ in range(3):
        for _ in range(pair.random.randrange(3, 25)):
            pair.work()
            pair.sweep()
        pair.lease_some()
        for _ in range(180):
            pair.sweep()
            pair.check()
    for store in pair.stores:
        store.close()


def test_a_store_at_rest_is_left_alone(tmp_path, monkeypatch):
    pair = SleepyPair(tmp_path, monkeypatch, 0)
    for store in pair.stores:
        store.ingest([call("a"), call("b", at=NOW + 0.5)], {})
    pair.sweep()
    pair.sweep()
    before = pair.writes
    for _ in range(20):
        pair.sweep()
    assert pair.writes == before
    for store in pair.stores:
        store.close()
