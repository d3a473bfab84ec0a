from __future__ import annotations

import re

import pytest
from pydantic import ValidationError

from slipstream.config import load_config
from slipstream.contract import RewardIn
from slipstream.errors import ConfigError
from slipstream.settings.gate import GateConfig


def test_pace_is_a_word_or_a_number():
    assert [GateConfig(pace=p).pace for p in ("careful", "go", 3)] == ["careful", "go", 3]
    for wrong in ("wait", 0, -1):
        with pytest.raises(ValidationError):
            GateConfig(pace=wrong)


def test_groups_are_named_by_task_or_tag():
    assert GateConfig().by is None and GateConfig(by=["task", "tag.customer"]).by == ["task", "tag.customer"]
    for wrong in (["customer"], ["tag."], "task"):
        with pytest.raises(ValidationError):
            GateConfig(by=wrong)


def test_guards_are_measures_with_a_bad_direction():
    assert GateConfig(guards={"reward.polite": "down", "turns": "up"}).guards == {
        "reward.polite": "down",
        "turns": "up",
    }
    for wrong in ({"lenght": "up"}, {"turns": "worse"}, {"reward.": "up"}):
        with pytest.raises(ValidationError):
            GateConfig(guards=wrong)


def test_a_reward_range_is_two_numbers_in_order():
    assert GateConfig(reward_range=[0, 2]).reward_range == (0.0, 2.0)
    for wrong in ([1, 0], [0, 0], [0], [0, float("inf")]):
        with pytest.raises(ValidationError):
            GateConfig(reward_range=wrong)


@pytest.mark.parametrize("value", [1e308, -1e13, float("inf"), float("nan")])
def test_rewards_are_bounded_so_that_their_sums_are_finite(value):
    with pytest.raises(ValidationError):
        RewardIn(value=value)


def test_weights_are_bounded_too():
    load_config(flags=["reward.weights.reward=1000"])
    with pytest.raises(ConfigError, match=r"reward\.weights"):
        load_config(flags=["reward.weights.reward=1e300"])


@pytest.mark.parametrize(
    ("gate", "says"),
    [
        ({"plan": [0.1]}, 'gate.mode = "canary"'),
        ({"mode": "replay", "plan": [0.1], "replay": {"then": "guard"}}, 'gate.replay.then = "canary"'),
        ({"mode": "canary", "first": ["key=a"]}, "gate.plan"),
    ],
)
def test_a_plan_that_nothing_follows_is_refused(gate: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(says)):
        GateConfig.model_validate(gate)
    assert GateConfig.model_validate({"mode": "canary", "plan": [0.1], "first": ["key=a"]}).trial == "canary"
