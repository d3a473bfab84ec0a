"""Which runs are recent enough, and which groups are lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_proxy.store.learning.groups import Freshness, Loss, Times
from slipstream_proxy.store.tables.rows import EpisodeRow, dump

VERSIONS = {f"m@{n}": n for n in range(1, 12)}


def run(*adapters: str) -> EpisodeRow:
    return EpisodeRow("-/e", "-", "e", adapters=dump(list(adapters)))


CASES = (
    ([], Loss("dropped", "deleted")),
    ([run()], Loss("dropped", "nothing_trainable")),
    ([run("m@1"), run("m")], Loss("stale", "trainer")),
    ([run("m@1"), run("m@9")], None),
    ([run("m"), run("m@1", "m@7")], None),
    ([run("m@9"), run("m@8")], Loss("dropped", "rolled_back")),
)


@pytest.mark.parametrize(("members", "loss"), CASES)
def test_a_group_is_lost_if_nothing_in_it_can_be_trained_on(members, loss):
    assert Freshness(VERSIONS, 10, 4, {"m@8"}).loss(members, "trainer") == loss


@given(
    st.lists(st.lists(st.sampled_from(["m", *VERSIONS]), min_size=1, max_size=3), min_size=1, max_size=8),
    st.integers(0, 11),
)
def test_stale_runs_are_those_of_which_nothing_trains(runs, live):
    fresh = Freshness(VERSIONS, live, 3, set())
    members = [run(*adapters) for adapters in runs]
    stale = fresh.stale_runs(members)
    assert (stale == len(members)) == (fresh.loss(members, "trainer") is not None)
    assert 0 <= stale <= len(members)


TIMES = (
    (Times(0, None, None, None), "forming"),
    (Times(0, 60, 70, None), "forming"),
    (Times(0, 10, None, None), "reward"),
    (Times(0, 10, 80, "lease"), "judge"),
    (Times(0, 10, 20, "lease"), "trainer"),
)


@pytest.mark.parametrize(("times", "longest"), TIMES)
def test_what_a_group_waited_for_longest(times, longest):
    assert times.longest(100.0) == longest
