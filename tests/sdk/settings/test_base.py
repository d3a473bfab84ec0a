"""What holds for every section of the settings."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from slipstream.settings import Config
from slipstream.settings.base import Positive, Section, Share

SECTIONS = {n: f.annotation for n, f in Config.model_fields.items() if isinstance(f.annotation, type)}
SECTIONS = {n: kind for n, kind in SECTIONS.items() if issubclass(kind, Section)}


@pytest.mark.parametrize("name", SECTIONS)
def test_a_misspelt_setting_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="no_such_setting"):
        Config.model_validate({name: {"no_such_setting": 1}})


def test_every_section_is_seen() -> None:
    assert {"proxy", "engine", "gate", "judge", "trainer", "store", "groups"} <= set(SECTIONS)


def test_bounds() -> None:
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ValidationError):
            TypeAdapter(Positive).validate_python(wrong)
    assert [TypeAdapter(Share).validate_python(x) for x in (0, 1)] == [0.0, 1.0]
    for wrong in (-0.01, 1.01):
        with pytest.raises(ValidationError):
            TypeAdapter(Share).validate_python(wrong)


def test_a_section_takes_no_infinite_number() -> None:
    class Some(Section):
        seconds: float = 1.0

    for wrong in (float("inf"), float("nan")):
        with pytest.raises(ValidationError):
            Some(seconds=wrong)
