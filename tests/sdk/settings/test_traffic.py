"""From calls to rewarded groups: what can be set."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from slipstream.settings import EpisodesConfig, GroupsConfig, IdentityConfig, RewardConfig


@pytest.mark.parametrize(
    ("section", "wrong"),
    [
        (IdentityConfig, {"continue_window": 0}),
        (EpisodesConfig, {"idle_timeout": -1}),
        (GroupsConfig, {"size": 1}),
        (GroupsConfig, {"max_age": 0}),
        (RewardConfig, {"credit": "token"}),
        (RewardConfig, {"orphan_ttl": 0}),
        (RewardConfig, {"weights": {"reward": float("inf")}}),
    ],
)
def test_what_cannot_be(section: type[GroupsConfig], wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as e:
        section.model_validate(wrong)
    assert next(iter(wrong)) in str(e.value)


def test_the_agents_own_reward_trains_at_the_defaults() -> None:
    assert RewardConfig().weights == {"reward": 1.0}
    RewardConfig().weights["judge"] = 9.0
    assert RewardConfig().weights == {"reward": 1.0}  # no default is shared


def test_a_weight_may_be_negative() -> None:
    assert RewardConfig(weights={"cost": -0.1}).weights == {"cost": -0.1}
