"""What every section is made of."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from slipstream.models import StrictModel

WHEN_KEY = "when"
"""Of a field's schema: who needs it."""


def known(names: Collection[str], own: str = "module:function") -> AfterValidator:
    """Checks a setting that takes one of the names, or ``own``: the place of something of the user's."""

    def check(spec: str) -> str:
        module, colon, name = spec.partition(":")
        if spec not in names and not (colon and module and name):
            raise ValueError(f"Input should be {', '.join(map(repr, names))}, or {own} of your own")
        return spec

    return AfterValidator(check)


def rare(*default: Any, when: str, **field: Any) -> Any:
    """A setting of the second level: ``slipstream config --all`` shows it. ``when``: who needs it, behind "if"."""
    return Field(*default, json_schema_extra={WHEN_KEY: when}, **field)


def when_needed(field: FieldInfo) -> str | None:
    """Who needs a setting of the second level, behind "if"; None: it is of the first."""
    extra = field.json_schema_extra
    found = extra.get(WHEN_KEY) if isinstance(extra, dict) else None
    return found if isinstance(found, str) else None


Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(StrictModel):
    model_config = ConfigDict(allow_inf_nan=False)

    def notes(self) -> list[str]:
        """What follows from the settings together, for who looks at them."""
        return []
