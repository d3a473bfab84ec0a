"""What plug-ins are there, and what their views show."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from slipstream.contract.base import Model


class PluginStatus(Model):
    """A plug-in of this proxy."""

    name: str
    text: str = ""
    enabled: bool = True
    error: str | None = None
    """Why it is not used, or what failed in it last."""
    errors: int = 0
    """Failures of its routes, jobs and views since the control plane started."""
    views: dict[str, str] = Field(default_factory=dict)
    """Its views of the page: name → title."""


class PluginList(Model):
    """``GET plugins``."""

    plugins: list[PluginStatus]


class PluginBlock(Model):
    """A part of a view, from above to below: a paragraph, a table, or a line over time."""

    kind: Literal["text", "table", "line"]
    title: str = ""
    text: str = ""
    """Of a paragraph."""
    columns: list[str] = Field(default_factory=list)
    rows: list[list[JsonValue]] = Field(default_factory=list)
    """Of a table, a value a column."""
    points: list[tuple[float, float]] = Field(default_factory=list)
    """Of a line: seconds since the epoch, and the value then."""


class PluginView(Model):
    """``GET plugins/{name}/views/{view}``."""

    title: str
    blocks: list[PluginBlock]
