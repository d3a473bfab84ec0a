"""Ids, tags and numbers: what is accepted, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from slipstream.contract.base import PLAIN_ID_PATTERN, Error, Finite, Headers, Id, Model, RewardValue, Split, Tag


@given(st.text(max_size=200))
@example(".")
@example("..")
def test_a_tag_is_also_an_id_and_the_pattern_agrees_with_the_type(text: str) -> None:
    """But for the two that a URL's path reads as folders: a stored tag may be one, a name is never."""
    try:
        TypeAdapter(Tag).validate_python(text)
    except ValidationError:
        assert PLAIN_ID_PATTERN.match(text) is None
    else:
        assert (PLAIN_ID_PATTERN.match(text) is None) == (text in (".", ".."))
        assert TypeAdapter(Id).validate_python(text) == text


def test_a_newline_at_the_end_is_refused() -> None:
    assert PLAIN_ID_PATTERN.match("ok") is not None
    assert PLAIN_ID_PATTERN.match("ok\n") is None


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("kind", [Finite, RewardValue])
def test_numbers_are_finite(kind: Any, value: float) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(value)


def test_rewards_are_bounded() -> None:
    rewards = TypeAdapter(RewardValue)
    assert rewards.validate_python(-1e12) == -1e12
    with pytest.raises(ValidationError):
        rewards.validate_python(1.1e12)


def test_an_unknown_field_is_an_error_that_names_it() -> None:
    class Body(Model):
        value: int

    with pytest.raises(ValidationError, match="valeu"):
        Body.model_validate({"value": 1, "valeu": 2})


def test_an_error_has_one_shape() -> None:
    body = Error(error=Error.Detail(type="invalid", message="no")).model_dump()
    assert body == {"error": {"type": "invalid", "message": "no", "field": None, "fix": None}}


def test_every_header_is_one_of_ours() -> None:
    names = {value for name, value in vars(Headers).items() if name.isupper()}
    assert len(names) == 10
    assert all(name.startswith(Headers.PREFIX) and name == name.lower() for name in names)


def test_splits() -> None:
    assert [Split(s) for s in ("train", "eval", "off", "sibling")] == list(Split)
