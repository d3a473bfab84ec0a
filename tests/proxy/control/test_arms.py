from __future__ import annotations

from slipstream_proxy.control.arms import choose, share_of


def test_shares_are_kept_and_groups_mix():
    arms = [("old", "control", 0.1), ("new", "candidate", 0.2)]
    got = [choose("live", arms, f"t{t}", f"e{t}-{i}") for t in range(500) for i in range(8)]
    share = {
        a: sum(g == a for g in got) / len(got) for a in (("old", "control"), ("new", "candidate"), ("live", "live"))
    }
    assert abs(share["old", "control"] - 0.1) < 0.02
    assert abs(share["new", "candidate"] - 0.2) < 0.03
    mixed = sum(len({a for a, _ in got[t * 8 : t * 8 + 8]}) > 1 for t in range(500))
    assert mixed > 400


def test_always_the_same_and_evaluation_sees_the_live_one():
    assert share_of("t", "e") == share_of("t", "e") != share_of("t", "f")
    assert share_of(None, "\ud800") >= 0
    assert choose("live", [("old", "control", 1.0)], "t", "e") == ("old", "control")
    assert choose("live", [("old", "control", 1.0)], "t", "e", "eval") == ("live", "live")
