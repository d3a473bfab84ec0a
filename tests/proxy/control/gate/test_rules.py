from __future__ import annotations

from slipstream.settings.gate import GateConfig
from slipstream_proxy.control.gate.rules import TrialSettings


def test_what_simulations_use_are_the_defaults_that_users_have() -> None:
    ours, theirs = TrialSettings(), GateConfig()
    for name in ("holdout", "share", "alpha", "settle", "reward_range"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.canary is (theirs.mode == "canary")
