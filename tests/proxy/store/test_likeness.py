"""Which untagged runs count as runs of one task."""

from __future__ import annotations

import pytest
from tests.support.records import NOW, call

from slipstream_proxy.store.learning.groups import MIN_TASK_RUNS, RECENT_EPISODES, RecentRuns, alike_of, likeness_of
from slipstream_proxy.store.tables.rows import EpisodeRow


def record(system: str, user: str):
    return call(messages=[{"role": "system", "content": system}, {"role": "user", "content": user}])


@pytest.mark.parametrize(("one", "two", "same"), [("be good", "be good", True), ("be good", "be bad", False)])
def test_episodes_are_alike_by_what_they_begin_with(one, two, same):
    first, second = alike_of(record(one, "a")), alike_of(record(two, "b"))
    assert (likeness_of(first) == likeness_of(second)) is same
    assert first != second


def test_the_first_message_is_the_task():
    assert alike_of(record("be good", "a")) == alike_of(record("be good", "a"))
    assert alike_of(call(messages=[])) != alike_of(record("be good", "a"))


def run_of(n: int, text: str) -> EpisodeRow:
    ep = EpisodeRow(f"-/e{n}", "-", f"e{n}", model="m", grouped=False, state="done", ended=NOW + n)
    ep.alike = alike_of(record("agent", text))
    return ep


def test_a_message_that_keeps_coming_back_is_a_task(store):
    recent = RecentRuns()
    with store.db.read() as tx:
        found = [recent.recurs(tx, run_of(n, "play")) for n in range(MIN_TASK_RUNS + 2)]
        assert found == [False] * (MIN_TASK_RUNS - 1) + [True] * 3
        assert not any(recent.recurs(tx, run_of(n, f"another {n}")) for n in range(RECENT_EPISODES))
        assert not recent.recurs(tx, run_of(99, "play")), "it is rare now"


def test_what_is_recent_is_read_from_the_store_after_a_restart(store):
    messages = [{"role": "system", "content": "agent"}, {"role": "user", "content": "play"}]
    store.ingest(
        [call(f"e{n}", task=None, at=NOW + n, done=True, messages=messages) for n in range(MIN_TASK_RUNS - 1)], {}
    )
    ep = EpisodeRow("-/last", "-", "last", model="m", grouped=False, alike=alike_of(call(messages=messages)))
    with store.db.read() as tx:
        assert RecentRuns().recurs(tx, ep)
