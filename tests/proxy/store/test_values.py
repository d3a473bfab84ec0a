"""The values that go into a store and come out of it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from slipstream.config import Config
from slipstream_proxy.control.run.store_keeper import rules_of
from slipstream_proxy.store.values import EpisodeFilter, Position, Rules


def test_positions_are_ordered_by_segment_and_then_by_offset():
    assert Position(1, 900) < Position(2, 0) < Position(2, 1)
    assert max([Position(2, 0), Position(1, 5)]) == Position(2, 0)
    with pytest.raises(FrozenInstanceError):
        Position(1, 2).segment = 3  # type: ignore[misc]


def test_the_rules_without_a_configuration_are_those_of_the_defaults():
    assert Rules() == rules_of(Config())


def test_no_default_is_shared():
    first = EpisodeFilter()
    first.tags["a"] = "b"
    assert EpisodeFilter().tags == {}
    Rules().weights["x"] = 1.0
    assert Rules().weights == {"reward": 1.0}


def test_a_filter_asks_for_everything_by_default():
    given = {f.name for f in fields(EpisodeFilter) if getattr(EpisodeFilter(), f.name) not in (None, {}, [], False)}
    assert given <= {"limit", "patience", "replays"}, "what is asked for narrows the answer"
