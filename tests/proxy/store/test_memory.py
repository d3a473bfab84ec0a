"""What the only writer remembers is what is stored."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_proxy.store.tables.memory import Fresh, Memory, NewestRewards
from slipstream_proxy.store.tables.rows import EpisodeRow
from slipstream_proxy.store.tables.tallies import CountedReward


@settings(deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 60).map(lambda n: f"{n:03d}"), max_size=8), max_size=20), st.integers(2, 10))
def test_it_never_errs(batches, most):
    stored = {"010", "020"}
    fresh = Fresh(most)
    fresh.begin(max(stored))
    for batch in batches:
        unsure = fresh.unsure(batch)
        known = {i for i in unsure if i in stored} | set(fresh.stored(batch))
        assert known == {i for i in batch if i in stored}
        stored.update(batch)
        fresh.add(batch)


def test_before_it_begins_it_knows_nothing():
    fresh = Fresh()
    assert not fresh.ready
    fresh.add(["a"])
    assert fresh.unsure(["a", "b"]) == ["a", "b"]
    fresh.begin(None)
    assert fresh.ready
    assert fresh.unsure(["a"]) == []
    fresh.forget()
    assert not fresh.ready


def test_episodes_are_forgotten_in_order():
    memory = Memory(most=2)
    eps = [EpisodeRow(f"-/{i}", "-", str(i)) for i in range(3)]
    memory.keep(eps)
    memory.keep(eps[1:2])
    assert list(memory.episodes) == ["-/2", "-/1"]
    memory.drop(["-/2", "-/9"])
    assert list(memory.episodes) == ["-/1"]
    memory.clear()
    assert memory.episodes == {}


def test_rewards_are_remembered_within_bounds():
    held = NewestRewards(most=5)
    held.keep("a", [])
    held.keep("b", [CountedReward("b", None, "reward", "agent", 0.5, 1)])
    assert held.of("a") == [] and len(held.of("b")) == 1
    held.keep("c", [CountedReward("c", str(n), "reward", "agent", 0.5, n) for n in range(3)])
    assert [eid in held for eid in "abc"] == [False, False, True]  # one episode and three rewards are four
    for n in range(9):
        held.keep(f"empty-{n}", [])
    assert "c" not in held and "empty-8" in held and "empty-0" not in held
    held.drop(["empty-8", "never"])
    assert "empty-8" not in held
