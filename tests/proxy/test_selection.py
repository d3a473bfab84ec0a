"""Which engine takes a call: no engine gets much more than the others, an episode stays, and runs of a task are near."""

from __future__ import annotations

import pytest
from tests.support.engine_traffic import ENGINES, Traffic

from slipstream_proxy.data.engines.selection import AbleEngines, EngineSelection


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("tasks", [False, True])
def test_the_fullest_of_fifty_engines_has_little_more_than_the_mean(tasks: bool, alone: bool) -> None:
    found = Traffic(2000, 40_000, ENGINES, tasks=tasks, alone=alone)
    assert found.fullest() <= 1.15 and found.moved == 0
    if tasks:
        whole = [len(engines) for engines in list(found.near.values())[:500]]
        assert sum(whole) / len(whole) < 2.5, "a group of eight prefills its prompt on few engines"


def test_an_engine_that_goes_moves_its_own_episodes_alone() -> None:
    selection, able = EngineSelection(), AbleEngines(ENGINES)
    at = {f"e{n}": selection.pick(able, f"e{n}", "", "")[0] for n in range(2000)}
    fewer = AbleEngines(ENGINES[1:])
    for episode, engine in at.items():
        now = selection.pick(fewer, episode, "", engine)[0]
        assert now == engine or engine == ENGINES[0]


def test_one_hot_engine_keeps_nobody() -> None:
    """All calls of one hang: its episodes go where there is room."""
    selection, able = EngineSelection(), AbleEngines(ENGINES[:4])
    for _ in range(40):
        selection.begin(ENGINES[0])
    assert selection.pick(able, "e", "", ENGINES[0])[0] != ENGINES[0]
    assert selection.pick(able, "e", "task", "")[0] != ENGINES[0]


@pytest.mark.parametrize("count", range(6))
def test_the_next_to_try_are_others(count: int) -> None:
    selection, able = EngineSelection(), AbleEngines(ENGINES[:count])
    for n in range(50):
        found = selection.pick(able, f"e{n}", "", "")
        assert len(found) == len(set(found)) == min(count, 3) and set(found) <= set(ENGINES[:count])
