from __future__ import annotations

from pathlib import Path

from slipstream.settings.gate import GateConfig
from slipstream.shared.error_budget import table, wrong_rollback

PAGE = Path(__file__).parents[3] / "docs" / "gate.md"


def test_the_page_has_the_table_of_the_code():
    assert table() in PAGE.read_text()


def test_the_promise_is_the_sum_of_the_stakes():
    assert wrong_rollback(0.01, 4000) == 0.01
    assert wrong_rollback(0.01, 8000) - wrong_rollback(0.01, 4000) <= 0.4 * 0.01 + 1e-12
    assert wrong_rollback(0.01, 4000, rollbacks=1) - 0.01 <= 0.6 * 0.01 + 1e-12
    assert wrong_rollback(0.01, 4000, groups=False) < 0.01
    assert (
        0.03 < wrong_rollback(0.01, 4000, turning=True) < 0.04 < wrong_rollback(0.01, 4000, rollbacks=1, turning=True)
    )


def test_the_settings_say_what_they_prove():
    found = GateConfig().notes()
    assert "at most 0.01 in 4,000 runs and 0.026 in 20,000 runs" in found[0] and "frozen" in found[1]
    assert "another way, of at most 0.038 and 0.1." in found[0] and "have a measure" not in found[1]
    assert "have a measure: 0.04 and 0.1." in GateConfig(guards={"reward.polite": "down"}).notes()[1]
    assert "at most 0.05 in 4,000 runs" in GateConfig(alpha=0.05).notes()[0]
    assert len(GateConfig(guards={}).notes()) == 1 and GateConfig(mode="manual").notes() == []
