"""What came of a batch, or of one of its minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from slipstream.contract import ChoiceGaps
from slipstream_trainer.step.gaps import newest

LAST_FIGURES = ("learning_rate", "learning_rate_scale", "entropy_after")
"""Figures of a batch that are those of its last optimiser step."""
LARGEST_FIGURES = ("layers_recomputed", "words_passes")


@dataclass(slots=True)
class Result:
    """``outcome``: ``step``, ``skipped`` (nothing was changed) or ``undone`` (everything was put back)."""

    outcome: str
    reason: str | None = None
    figures: dict[str, JsonValue] = field(default_factory=dict)
    advantages: dict[str, float] = field(default_factory=dict)
    gaps: list[ChoiceGaps] = field(default_factory=list)
    words: dict[str, dict[str, float]] = field(default_factory=dict)
    """Group → call → mean of what a user's words changed in a token's log-probability."""


def merged(parts: Sequence[Result]) -> Result:
    """Of a batch, from its minibatches. Figures of a token are means over tokens; counts and seconds are sums.

    ``step`` if one of them was a step. ``reason`` then says what became of the others.
    """
    if len(parts) == 1:
        return parts[0]
    outcomes = [p.outcome for p in parts]
    outcome = next(o for o in ("step", "undone", "skipped") if o in outcomes)
    left = next((p for p in parts if p.outcome != "step"), None)
    reason = left.reason if left else None
    if outcome == "step" and left:
        reason = f"{len(parts) - outcomes.count('step')} of {len(parts)} minibatches {left.outcome}: {reason}"
    figures = _figures(parts) | {"optimizer_steps": outcomes.count("step")}
    gaps = newest(gap for part in reversed(parts) for gap in part.gaps)
    return Result(outcome, reason, figures, gaps=gaps)


def _figures(parts: Sequence[Result]) -> dict[str, JsonValue]:
    told: dict[str, list[tuple[float, JsonValue]]] = {}
    for part in parts:
        tokens = part.figures.get("tokens")
        for name, value in part.figures.items():
            told.setdefault(name, []).append((float(tokens) if isinstance(tokens, int) else 0.0, value))
    return {name: _one(name, values) for name, values in told.items()}


def _one(name: str, told: Sequence[tuple[float, JsonValue]]) -> JsonValue:
    numbers = [(weight, value) for weight, value in told if isinstance(value, int | float)]
    if len(numbers) < len(told) or name in LAST_FIGURES:
        return told[-1][1]
    if name in LARGEST_FIGURES:
        return max(value for _, value in numbers)
    total = sum(value for _, value in numbers)
    if name.endswith("_seconds") or all(isinstance(value, int) for _, value in numbers):
        return total
    weights = sum(weight for weight, _ in numbers)
    return sum(weight * value for weight, value in numbers) / weights if weights else total / len(numbers)
