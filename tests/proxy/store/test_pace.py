"""How long an agent pauses between calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipstream_proxy.store.pace import ENOUGH, LEAST_TAGGED, LEAST_UNTAGGED, UNKNOWN, Agent, Pace

ANN = Agent("ann", "m")


@given(st.lists(st.floats(-5, 5000), max_size=60), st.floats(1, 2000), st.booleans())
def test_it_stays_within_its_bounds(pauses, limit, untagged):
    pace = Pace(limit)
    for pause in pauses:
        pace.note(ANN, pause)
    found = pace.idle_after(ANN, untagged=untagged)
    assert found <= limit
    if len(pauses) >= ENOUGH:
        assert found >= min(limit, LEAST_UNTAGGED if untagged else LEAST_TAGGED)
        assert found >= min(limit, sorted(pauses)[len(pauses) // 2]), "longer than a usual pause"
    else:
        assert found == (min(UNKNOWN, limit) if untagged else limit)


def test_one_agent_says_nothing_about_another():
    pace = Pace(900.0)
    for _ in range(100):
        pace.note(ANN, 200.0)
    assert pace.idle_after(Agent("bob", "m"), untagged=True) == UNKNOWN
    assert pace.idle_after(ANN, untagged=True) == 800.0


def test_it_follows_an_agent_that_changes():
    pace = Pace(900.0)
    for pause in [100.0] * 1000 + [1.0] * 1000:
        pace.note(ANN, pause)
    assert pace.idle_after(ANN, untagged=True) == LEAST_UNTAGGED
