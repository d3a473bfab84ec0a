from __future__ import annotations

import math
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_proxy.assignment import (
    BEST_ARM,
    CONTROL_ARM,
    LIVE_ARM,
    Assignment,
    assign,
    chance,
    chances_of,
    place,
    tried,
)

ARMS = [("m@3", CONTROL_ARM, 0.1), ("m", BEST_ARM, 0.05)]
NAMES = st.text(max_size=12)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    NAMES,
    NAMES,
    st.none() | NAMES,
    NAMES,
    st.sampled_from(["train", "eval", "off"]),
    st.floats(0.01, 0.5),
    st.floats(0, 0.3),
)
def test_an_assignment_depends_on_its_arguments_alone_and_says_its_own_probability(
    live, key, task, episode, split, first, second
):
    arms = [("a", CONTROL_ARM, first), ("b", BEST_ARM, second)]
    got = assign(live, arms, key, task, episode, split)
    assert got == assign(live, list(arms), key, task, episode, split)
    if split != "train":
        assert got == Assignment(live, LIVE_ARM, 1.0, "")
        return
    assert (got.adapter, got.arm) in {(live, LIVE_ARM), ("a", CONTROL_ARM), ("b", BEST_ARM)}
    assert math.isclose(chance(got.chances, got.arm), got.propensity, rel_tol=1e-5)
    assert math.isclose(sum(chance(got.chances, arm) for arm in (LIVE_ARM, CONTROL_ARM, BEST_ARM)), 1.0, abs_tol=1e-5)


def test_arms_get_their_shares_and_a_task_meets_several_arms():
    got = [assign("m@4", ARMS, "k", f"t{t}", f"e{t}-{i}").arm for t in range(2500) for i in range(8)]
    share = {arm: n / len(got) for arm, n in Counter(got).items()}
    assert abs(share[CONTROL_ARM] - 0.1) < 0.01
    assert abs(share[BEST_ARM] - 0.05) < 0.008
    mixed = sum(len(set(got[t * 8 : t * 8 + 8])) > 1 for t in range(2500))
    assert mixed > 1600


def test_names_that_come_again_get_another_coin_with_each_version():
    """The same hundred names in forty versions: no name is stuck in one arm, and neighbours in version are independent."""
    arms = [("m", CONTROL_ARM, 0.5)]
    table = [[assign(f"m@{v}", arms, "k", "t", f"run-{i}").arm == CONTROL_ARM for i in range(100)] for v in range(40)]
    per_name = [sum(column) for column in zip(*table, strict=True)]
    assert 5 < min(per_name) and max(per_name) < 35
    same = sum(a == b for one, two in zip(table, table[1:], strict=False) for a, b in zip(one, two, strict=True))
    assert abs(same / 3900 - 0.5) < 0.04


def test_a_larger_control_share_keeps_those_who_were_in_it():
    """The coin does not move when the share does, so a rise only takes episodes from the live arm."""
    small = {i for i in range(2000) if assign("m@1", [("m", CONTROL_ARM, 0.1)], "k", None, str(i)).arm == CONTROL_ARM}
    large = {i for i in range(2000) if assign("m@1", [("m", CONTROL_ARM, 0.5)], "k", None, str(i)).arm == CONTROL_ARM}
    assert small < large


def test_keys_tasks_and_broken_text_have_places_of_their_own():
    assert place("m", "a", "t", "e") != place("m", "b", "t", "e") != place("m", "b", "u", "e")
    assert 0 <= place("\ud800", "k", None, "\ud800") < 1
    assert assign("m", [("old", CONTROL_ARM, 1.0)], "k", "t", "e") == (
        "old",
        CONTROL_ARM,
        1.0,
        "live=0 control=1 tried=m",
    )


def test_without_arms_there_is_nothing_to_choose():
    assert assign("m", [], "k", "t", "e") == ("m", LIVE_ARM, 1.0, "")


def test_probabilities_are_read_back_and_foreign_text_is_none():
    assert chances_of(ARMS) == "live=0.85 control=0.1 best=0.05"
    assert chance("live=0.85 control=0.1", CONTROL_ARM) == 0.1
    for text in ("", "control", "control=x", "control=nan", "control=2", "control=-1"):
        assert chance(text, CONTROL_ARM) == 0.0


def test_what_is_on_trial_is_read_back():
    """The live adapter, or in canary mode the candidate; whatever stands in its name."""
    for name in ("m@7", "org/m", "a name = b", "\u00e9"):
        assert tried(assign(name, ARMS, "k", None, "e").chances) == name
        assert tried(assign("m", [(name, "candidate", 0.2)], "k", None, "e").chances) == name
    assert chance(assign("control=1 best=1", [("m", BEST_ARM, 0.2)], "k", None, "e").chances, CONTROL_ARM) == 0.0
    assert tried("live=0.9 control=0.1") is None
