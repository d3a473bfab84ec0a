"""Which adapter has which part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.registry import adapter, registry

from slipstream.contract import Adapter, AdapterState
from slipstream_proxy.control.adapters.trials import GateTrials
from slipstream_proxy.control.shared.problem import Problem

STATES = [s.value for s in AdapterState]


def test_what_the_store_says_is_taken_over():
    r = registry()
    r.adopt(3, [adapter(1, "loading"), adapter(2)])
    assert (r.revision, set(r.arrived)) == (3, {"tiny@1"})
    r.mine.add("tiny@1")
    r.given_up.add("tiny@2")
    r.adopt(4, [adapter(1), adapter(2)])
    assert (r.arrived, r.mine, r.given_up) == ({}, set(), set())


def test_a_candidate_answers_new_episodes_under_guard_and_a_share_under_canary():
    for mode, live, arms in (
        ("guard", "tiny@2", [("tiny@1", "control", 0.125), ("tiny", "best", 0.175)]),
        ("canary", "tiny@1", [("tiny@2", "candidate", 0.5), ("tiny", "best", 0.175)]),
        ("manual", "tiny@1", []),
    ):
        r = registry(mode, holdout=0.25, share=0.5)
        r.put([adapter(1), adapter(2, "candidate")])
        assert (r.live("tiny"), GateTrials(r).arms("tiny"), r.accepted("tiny")) == (live, arms, "tiny@1")
        assert r.versions("tiny") == ({"tiny": 0, "tiny@1": 1, "tiny@2": 2}, 2 if mode == "guard" else 1)


def test_an_adapter_is_found_by_name_or_number():
    r = registry()
    r.put([adapter(1), Adapter(name="other@2", model="other", version=2, state="live", created=1.0, path="other@2")])
    assert r.find("tiny@1") is r.find("1")
    r.put([adapter(2, "retired")])
    for which, status in (("2", 409), ("9", 404)):
        with pytest.raises(Problem) as e:
            r.find(which)
        assert e.value.status == status


@given(st.lists(st.sampled_from(STATES), max_size=6), st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_what_calls_may_be_sent_to_stays_in_the_engines(states, pinned, given_up):
    r = registry()
    r.put(adapter(n, state) for n, state in enumerate(states, 1))
    for n in pinned:
        r.pin(f"tiny@{n}")
    r.given_up = {f"tiny@{n}" for n in given_up}
    keep = r.keep()
    assert set(r.wanted()) == set(keep)
    assert {r.live("tiny"), r.accepted("tiny"), *(a.adapter for a in GateTrials(r).arms("tiny"))} - {"tiny"} <= set(
        keep
    )
    assert not any(a.state in (AdapterState.LOADING, AdapterState.REFUSED) for a in keep.values())
    for a in keep.values():
        assert a.state in (AdapterState.LIVE, AdapterState.CANDIDATE) or r.servable(a.name)


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(STATES), st.booleans(), st.booleans()), max_size=20))
def test_what_is_found_by_state_is_what_there_is(puts: list[tuple[int, str, bool, bool]]):
    r = registry()
    for version, state, best, adopted in puts:
        one = adapter(version, state, best=best)
        if adopted:
            r.adopt(1, [one])
        else:
            r.put([one])
    for s in AdapterState:
        assert {a.name for a in r.in_state(s)} == {a.name for a in r.items.values() if a.state == s}
        newest = max((a.version for a in r.items.values() if a.state == s), default=None)
        found = r.of("tiny", s)
        assert (found.version if found else None) == newest


def test_a_report_is_no_change_of_role():
    r = registry()
    r.put([adapter(1), adapter(2, "candidate")])
    before = r.changes
    r.put([r.items["tiny@2"].model_copy(update={"episodes": 5})])
    assert r.changes == before
    r.put([adapter(2, "rolled_back")])
    assert r.changes == before + 1
