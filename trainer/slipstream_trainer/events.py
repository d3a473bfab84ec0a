"""What is told of a step: an event, a line for the log, figures for Prometheus and for TRL's ``report_to``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from slipstream.contract import Event


def clean(value: Any) -> Any:
    """JSON that has no NaN and no infinities, floats with six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [clean(v) for v in value]
    return value


def event(kind: str, **data: object) -> Event:
    return Event(kind=kind, data=clean(data))


def line(data: Mapping[str, object]) -> str:
    """A step in one line."""

    def figure(name: str, form: str) -> str:
        value = data.get(name)
        return f"{name} {value:{form}}" if isinstance(value, int | float) else ""

    parts = [
        f"step {data.get('step')}",
        str(data.get("adapter") or ""),
        figure("reward", ".3f"),
        figure("loss", ".4g"),
        figure("kl", ".3g"),
        figure("learning_rate", ".2e"),
        figure("entropy", ".3g"),
        figure("logprob_gap", ".3g"),
        figure("tokens", "d"),
        figure("tokens_computed", "d"),
        figure("seconds", ".2f"),
    ]
    return ", ".join(p for p in parts if p)
