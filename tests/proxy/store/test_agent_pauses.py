"""How long an agent pauses between calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipstream_proxy.store.learning.groups import (
    LEAST_PACE as LEAST,
)
from slipstream_proxy.store.learning.groups import (
    LEAST_TAGGED,
    MIN_KNOWN_PAUSES,
    PACE_MEMORY_S,
    UNKNOWN_PACE_TIMEOUT_S,
    WELL_KNOWN,
    Agent,
    Pace,
)

ANN = Agent("ann", "m")
NOW = 1_000_000.0


@given(st.lists(st.floats(-5, 5000), max_size=160), st.floats(1, 2000), st.booleans())
def test_it_stays_within_its_bounds(pauses, limit, untagged):
    pace = Pace(limit)
    for n, pause in enumerate(pauses):
        pace.note(ANN, pause, NOW + n)
    found = pace.idle_after(ANN, NOW + len(pauses), untagged=untagged)
    assert found <= limit
    if len(pauses) < MIN_KNOWN_PAUSES:
        assert found == (min(UNKNOWN_PACE_TIMEOUT_S, limit) if untagged else limit)
        return
    assert found >= min(limit, LEAST)
    assert found >= min(limit, sorted(pauses)[len(pauses) // 2]), "longer than a usual pause"
    if not untagged:
        assert found >= min(limit, LEAST if len(pauses) >= WELL_KNOWN else LEAST_TAGGED)
        assert found >= min(limit, 1.5 * max(pauses)), "longer than any pause of the last hour"


def test_one_agent_says_nothing_about_another():
    pace = Pace(900.0)
    for _ in range(100):
        pace.note(ANN, 200.0, NOW)
    assert pace.idle_after(Agent("bob", "m"), NOW, untagged=True) == UNKNOWN_PACE_TIMEOUT_S
    assert pace.idle_after(ANN, NOW, untagged=True) == 800.0


def test_it_follows_an_agent_that_changes():
    pace = Pace(900.0)
    for pause in [100.0] * 1000 + [1.0] * 1000:
        pace.note(ANN, pause, NOW)
    assert pace.idle_after(ANN, NOW, untagged=True) == LEAST


def test_a_tagged_run_of_a_quick_agent_is_over_soon():
    """An agent that is judged need not say when it is done, and is not to wait two minutes for each of its verdicts."""
    pace = Pace(900.0)
    for n in range(WELL_KNOWN - 1):
        pace.note(ANN, 0.05, NOW + n)
    assert pace.idle_after(ANN, NOW, untagged=False) == LEAST_TAGGED
    pace.note(ANN, 0.05, NOW + WELL_KNOWN)
    assert pace.idle_after(ANN, NOW, untagged=False) == LEAST


def test_an_agent_that_waits_for_a_slow_engine_is_not_idle():
    """Its calls take a minute beside a training step, and each is known only when it has its answer."""
    pace = Pace(900.0)
    for n in range(2 * WELL_KNOWN):
        pace.note(ANN, 0.05, NOW + n)
        pace.answered(ANN, 60.0)
    assert pace.idle_after(ANN, NOW, untagged=False) == LEAST + 60.0
    for _ in range(1000):
        pace.answered(ANN, 1.0)
    assert pace.idle_after(ANN, NOW, untagged=False) == LEAST + 1.0, "the engine is quick again"
    pace.answered(Agent("bob", "m"), 60.0)
    assert not pace._answers.get(Agent("bob", "m")), "of an agent without pauses nothing is kept"


def test_a_tool_that_is_seldom_slow_is_waited_for_once_it_is_known():
    """One pause in two thousand takes a minute and a quarter: far beyond the 98th percentile, and out of its window."""
    pace = Pace(900.0)
    for n in range(10_000):
        pace.note(ANN, 75.0 if n % 2000 == 0 else 0.05, NOW + 0.1 * n)
        if n >= WELL_KNOWN:
            assert pace.idle_after(ANN, NOW + 0.1 * n, untagged=False) >= 1.5 * 75
    assert pace.idle_after(ANN, NOW + 800 + PACE_MEMORY_S, untagged=False) == LEAST, "it has not come for an hour"


def test_the_longest_pause_counts_until_it_is_an_hour_old():
    pace = Pace(900.0)
    for _ in range(4 * WELL_KNOWN):
        pace.note(ANN, 0.05, NOW)
    for n, pause in enumerate((100.0, 40.0, 60.0, 30.0)):
        pace.note(ANN, pause, NOW + 1000 * n)
    after = [pace.idle_after(ANN, NOW + PACE_MEMORY_S + 1000 * n - 1, untagged=False) for n in range(5)]
    assert after == [150.0, 90.0, 90.0, 45.0, LEAST]
    assert pace.idle_after(ANN, NOW + PACE_MEMORY_S - 1, untagged=False) == 150.0, (
        "a look changes nothing: others note meanwhile"
    )
