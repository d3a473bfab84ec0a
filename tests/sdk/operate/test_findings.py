from __future__ import annotations

from slipstream.operate.findings import Finding, fail, ok, warn


def test_levels() -> None:
    assert ok("fine") == Finding("ok", "fine", "")
    assert warn("slow", "faster disk") == Finding("warn", "slow", "faster disk")
    assert fail("gone", "bring it back") == Finding("fail", "gone", "bring it back")
