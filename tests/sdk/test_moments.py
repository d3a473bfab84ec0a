"""Moments as people write them."""

from __future__ import annotations

import pytest

from slipstream.errors import ConfigError
from slipstream.shared.moments import parse_moment


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90m", 1e6 - 5400),
        ("2h", 1e6 - 7200),
        ("1.5d", 1e6 - 129_600),
        (" 2w ", 1e6 - 1_209_600),
        ("30s", 1e6 - 30),
        ("1700000000", 1.7e9),
        ("1970-01-02", 86_400.0),
        ("1970-01-01T01:00:00+01:00", 0.0),
    ],
)
def test_moments(text: str, at: float) -> None:
    assert parse_moment(text, 1e6) == at


@pytest.mark.parametrize("text", ["", "yesterday", "2 h", "h", "-2h", "2026-13-01", "nan", "inf", "1e999"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--until .*: write an age \(90m, 2h, 7d\)"):
        parse_moment(text, flag="--until ")
