"""``[plugins.tinker]``: where the service is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slipstream.settings.base import Positive, Section, rare


class TinkerSettings(Section):
    url: str = Field(
        "http://127.0.0.1:8000", description="The service's URL. Its key stands in the variable TINKER_API_KEY."
    )
    base_model: str | None = rare(
        None,
        description="The base model's name at the service; None: trainer.model, else engine.model.",
        when="the service calls the model otherwise",
    )
    deadline: Positive = rare(
        600.0,
        description="Seconds in which the service has to answer a request; the first of each shape is compiled.",
        when="steps take longer, or a dead service should be noticed sooner",
    )
    reduction: Literal["auto", "mean", "sum"] = rare(
        "auto",
        description="Whether the service divides a gradient by weights and sequences; auto: three tries at the start.",
        when="the service does not tell the gradient's norm",
    )
