"""What the traces of all tools have in common."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from slipstream.operate.traces import ModelCall, Trace, in_order, message_of, messages_of, nested, number_of, time_of

ASK: dict[str, object] = {"role": "user", "content": "hi"}
USE: dict[str, object] = {"role": "assistant", "content": "wait"}
MORE: dict[str, object] = {"role": "user", "content": "and?"}
END: dict[str, object] = {"role": "assistant", "content": "done"}


@pytest.mark.parametrize(
    "value",
    [
        1_780_000_000,
        1_780_000_000_000,
        1_780_000_000_000_000_000,
        "1780000000",
        datetime.fromtimestamp(1_780_000_000, UTC),
        datetime.fromtimestamp(1_780_000_000, UTC).isoformat(),
    ],
)
def test_a_time_in_any_unit_is_seconds(value: object) -> None:
    assert time_of(value) == 1_780_000_000.0


@pytest.mark.parametrize("value", ["soon", None, -1, float("nan"), []])
def test_what_is_no_time(value: object) -> None:
    assert time_of(value) is None


def test_what_is_no_score() -> None:
    assert [number_of(v) for v in (True, 2, 0.5, "1", float("inf"), None)] == [1.0, 2.0, 0.5, None, None, None]


def test_messages_in_the_shapes_of_tools() -> None:
    assert message_of("hi", "user") == ASK
    assert message_of({"type": "human", "content": "hi"}, "assistant") == ASK
    assert message_of({"message": {"role": "assistant", "content": "done"}, "index": 0}, "user") == END
    assert message_of({"role": "user"}, "user") is None
    assert messages_of({"messages": [ASK, USE]}, "user") == [ASK, USE]
    assert messages_of([[ASK], [USE]], "user") == [ASK, USE]


def test_flat_names_become_objects() -> None:
    assert nested({"a.0.b": 1, "a.0.c": '{"d": 2}'}) == {"a": {"0": {"b": 1, "c": {"d": 2}}}}
    assert in_order({"10": {"x": 2}, "9": {"x": 1}}) == [{"x": 1}, {"x": 2}]


def test_only_calls_that_no_later_one_repeats_become_bodies() -> None:
    first = ModelCall(1.0, [ASK], USE)
    whole = ModelCall(2.0, [ASK, USE, MORE], END)
    branch = ModelCall(1.5, [MORE], END)
    bodies = Trace("t", [whole, first, branch], scores={"reward": 1.0, "tone": 0.5}).bodies("tool", "task")
    assert [b["messages"] for b in bodies] == [[MORE, END], [ASK, USE, MORE, END]]
    assert (bodies[0]["reward"], bodies[0]["metrics"]) == (1.0, {"tone": 0.5})
    assert "reward" not in bodies[1]
    assert Trace("t", [ModelCall(1.0, [ASK], None)]).bodies("tool", None) == []


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1, "-5"])
def test_a_time_without_end_is_none(value: object) -> None:
    assert time_of(value) is None
