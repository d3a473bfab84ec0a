"""What every section is made of."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def known(names: Collection[str], own: str = "module:function") -> AfterValidator:
    """Checks a setting that takes one of the names, or ``own``: the place of something of the user's."""

    def check(spec: str) -> str:
        module, colon, name = spec.partition(":")
        if spec not in names and not (colon and module and name):
            raise ValueError(f"Input should be {', '.join(map(repr, names))}, or {own} of your own")
        return spec

    return AfterValidator(check)


Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), allow_inf_nan=False)
