from __future__ import annotations

from slipstream_proxy.control.gate.rules import outcome_of


def test_it_has_the_probability_of_every_arm_at_the_assignment():
    found = outcome_of(3, "best", "live=0.9 control=0.03 best=0.07", "t", 1.5)
    assert (found.live, found.control, found.best, found.candidate) == (0.9, 0.03, 0.07, 0.0)
    assert (found.version, found.arm, found.task, found.reward) == (3, "best", "t", 1.5)


def test_an_episode_that_had_no_choice_has_no_probabilities():
    found = outcome_of(0, "live", "", "", 1.0)
    assert (found.live, found.control, found.best, found.candidate) == (0.0, 0.0, 0.0, 0.0)
