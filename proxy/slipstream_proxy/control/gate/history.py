"""How the gate's evidence of a version moved: enough readings for a chart, however many episodes it saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import JsonValue, TypeAdapter

from slipstream.contract import GateReading, GateReport
from slipstream_proxy.control.gate.report import interval, scaled
from slipstream_proxy.control.gate.trial import GateTrial

MOST = 320
"""Readings kept of a version."""
READINGS = TypeAdapter(list[GateReading])


def reading_of(trial: GateTrial, outcome: int, at: float) -> GateReading | None:
    """What the gate sees after this outcome; None: nothing is compared."""
    if not trial.on_trial and trial.control == trial.best:
        return None
    span = trial.scale.span or 1.0
    difference, lower, upper = interval(trial, of_best=False)
    known = difference is not None
    worse, best = trial.worse, trial.worse_best
    return GateReading(
        outcome=outcome,
        at=at,
        trial_episodes=worse.n_tested,
        control_episodes=worse.n_reference,
        difference=scaled(difference, span),
        lower=scaled(lower, span) if known else None,
        upper=scaled(upper, span) if known else None,
        evidence=round(min(worse.wealth + best.wealth, 1e9), 4),
        drift_difference=scaled(best.difference(), span) if trial.tried != trial.best else None,
        drift_evidence=round(min(best.wealth, 1e9), 4),
    )


def last_reading(report: GateReport, before: Sequence[GateReading], at: float) -> GateReading | None:
    """What stands in the adapter's own report, as one more reading; None: the last one says the same."""
    fields = report.model_dump(include=set(GateReading.model_fields) - {"outcome", "at"})
    last = before[-1] if before else None
    if last is not None and fields == last.model_dump(exclude={"outcome", "at"}):
        return None
    return GateReading(outcome=last.outcome if last else 0, at=max(at, last.at if last else 0.0), **fields)


def joined(before: Sequence[GateReading], after: Sequence[GateReading]) -> list[GateReading]:
    """Of what was read twice (the gate goes back to what it kept, after a crash) the later reading counts."""
    first = after[0].outcome if after else None
    return thinned([*(r for r in before if first is None or r.outcome < first), *after])


def thinned(readings: list[GateReading]) -> list[GateReading]:
    """At most ``MOST``, evenly over the outcomes, with the first and the last.

    Of each span of outcomes the first reading stays. A span is a power of two long, so that thinning again and again
    leaves the beginning as dense as the end.
    """
    if len(readings) <= MOST:
        return readings
    span = 1
    while readings[-1].outcome - readings[0].outcome > span * MOST // 2:
        span *= 2
    first: dict[int, GateReading] = {}
    for reading in readings[:-1]:
        first.setdefault(reading.outcome // span, reading)
    return [*first.values(), readings[-1]]


class GateHistory:
    """Readings that the store does not have yet, by version. Of one trained model."""

    def __init__(self) -> None:
        self.versions: dict[int, list[GateReading]] = {}

    def note(self, trial: GateTrial, outcome: int, at: float) -> None:
        if (reading := reading_of(trial, outcome, at)) is not None:
            readings = self.versions.setdefault(trial.tried, [])
            readings.append(reading)
            self.versions[trial.tried] = thinned(readings)

    def take(self) -> dict[int, list[GateReading]]:
        """What is to be stored now. It stays here until ``stored``: who asks meanwhile finds it."""
        return {version: list(readings) for version, readings in self.versions.items()}

    def stored(self, taken: Mapping[int, Sequence[GateReading]]) -> None:
        for version, readings in taken.items():
            rest = [r for r in self.versions.get(version, []) if r.outcome > readings[-1].outcome]
            if rest:
                self.versions[version] = rest
            else:
                self.versions.pop(version, None)


def dump_readings(readings: Sequence[GateReading]) -> dict[str, JsonValue]:
    return {"readings": [r.model_dump(mode="json", exclude_none=True) for r in readings]}


def load_readings(kept: Mapping[str, object] | None) -> list[GateReading]:
    """None, or what another version of this program wrote: no readings."""
    try:
        return READINGS.validate_python(kept["readings"]) if kept is not None else []
    except (KeyError, ValueError):
        return []
