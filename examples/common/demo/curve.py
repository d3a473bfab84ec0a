"""Reward over adapter versions: the numbers from the store, and the picture of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.client import AsyncClient
from slipstream.contract import Event
from slipstream.shared.intervals import mean_interval, reward_bounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVE_FIGURES = (
    "advantage_std",
    "engine_gap",
    "episodes",
    "grad_norm",
    "groups",
    "groups_dropped",
    "guarded",
    "kl_engine",
    "kl_target",
    "learning_rate_scale",
    "logprob_gap",
    "logprob_gap_max",
    "reward",
    "shortened",
    "staleness",
    "tokens",
)
"""What a step's event says that a plateau can be explained with."""
MIN_SPREAD_EPISODES = 8
"""With fewer episodes than this, a version's own standard deviation says little: that of all versions stands for it."""


def version_of(adapter: str) -> int:
    return int(adapter.rpartition("@")[2]) if "@" in adapter else 0


@dataclass(slots=True)
class VersionPoint:
    """Training episodes that one version served. ``at``: seconds from the run's first episode to their mean end."""

    version: int
    mean: float
    error: float
    """Standard error of the mean."""
    count: int
    at: float


@dataclass(slots=True)
class StepPoint:
    """One step of the trainer. ``version``: of the adapter that it made."""

    version: int
    at: float
    entropy: float | None
    kl: float | None
    figures: dict[str, float] = field(default_factory=dict)
    """Those of ``CURVE_FIGURES`` that the step has."""


@dataclass(slots=True)
class LearningCurve:
    """One run."""

    title: str
    versions: list[VersionPoint] = field(default_factory=list)
    steps: list[StepPoint] = field(default_factory=list)
    held_out: list[tuple[float, float, int]] = field(default_factory=list)
    """(mean, standard error, count) of held-out episodes before and after."""
    expert: float | None = None

    def as_json(self) -> dict[str, object]:
        return asdict(self)


async def read_curve(url: str, title: str) -> LearningCurve:
    """The run that a proxy has stored. The gate's control arm is left out: the version before, at a later time."""
    query = (
        "select adapter, avg(reward), stddev_samp(reward), count(*), avg(coalesce(ended, started)) from episodes "
        "where split = 'train' and arm <> 'control' and reward is not null and adapter is not null group by adapter"
    )
    async with AsyncClient(url) as client:
        rows = (await client.sql(query)).rows
        whole = "select stddev_samp(reward), min(started) from episodes where split = 'train' and reward is not null"
        deviation, began = (await client.sql(whole)).rows[0]
        events = await client.events()
    began, deviation = float(began or 0.0), float(deviation or 0.0)
    points = []
    for adapter, mean, own, count, ended in rows:
        spread = float(own or 0.0) if int(count) >= MIN_SPREAD_EPISODES else deviation
        error = spread / math.sqrt(int(count))
        points.append(VersionPoint(version_of(str(adapter)), float(mean), error, int(count), float(ended) - began))
    return LearningCurve(title, sorted(points, key=lambda p: p.version), steps_of(events, began))


def steps_of(events: Sequence[Event], began: float) -> list[StepPoint]:
    """The trainer's steps, with what they say of entropy and KL."""

    def number(value: object) -> float | None:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    return [
        StepPoint(
            version_of(str(event.data.get("adapter") or event.data.get("parent") or "")),
            event.at - began,
            number(event.data.get("entropy")),
            number(event.data.get("kl")),
            {name: value for name in CURVE_FIGURES if (value := number(event.data.get(name))) is not None},
        )
        for event in events
        if event.kind == "step"
    ]


def plot(curve: LearningCurve, path: Path, *, axis: str = "version", dpi: int = 90) -> None:
    """Draw reward with 95 % intervals and counts, entropy and KL below. ``axis``: "version" or "time"."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (upper, middle, lower) = plt.subplots(
        3, 1, figsize=(7.5, 6), sharex=True, height_ratios=(4, 1, 1.5), layout="constrained"
    )
    _draw_reward(upper, curve, axis)
    _draw_counts(middle, curve, axis)
    _draw_steps(lower, curve, axis)
    lower.set_xlabel("adapter version (0: the base model)" if axis == "version" else "minutes")
    figure.savefig(path, dpi=dpi, pil_kwargs={"optimize": True})
    plt.close(figure)


def _x(point: VersionPoint | StepPoint, axis: str) -> float:
    return point.version if axis == "version" else point.at / 60


def _draw_reward(axes: Axes, curve: LearningCurve, axis: str) -> None:
    points = curve.versions
    x = [_x(p, axis) for p in points]
    means = [*(p.mean for p in points), *(mean for mean, _, _ in curve.held_out)]
    bounds = reward_bounds(min(means, default=0.0), max(means, default=1.0))
    axes.errorbar(
        x,
        [p.mean for p in points],
        _bars([(p.mean, p.error, p.count) for p in points], bounds),
        fmt="-",
        color="#2563eb",
        ecolor="#93b4f5",
        linewidth=1.2,
        label="training episodes, mean and 95 % interval",
    )
    # a version with few episodes is a small point
    axes.scatter(x, [p.mean for p in points], [2 + 0.4 * min(p.count, 100) for p in points], color="#2563eb", zorder=3)
    reached = [*x, *(_x(step, axis) for step in curve.steps)]
    ends = [min(reached, default=0.0), max(reached, default=1.0)]
    for place, (mean, error, count) in zip(ends, curve.held_out, strict=False):
        axes.errorbar(
            [place], [mean], _bars([(mean, error, count)], bounds),
            fmt="D", color="#dc2626", markersize=7, capsize=3, zorder=4,
            label=f"held out ({count} episodes)" if place == ends[0] else None,
        )  # fmt: skip
    if curve.expert is not None:
        axes.axhline(curve.expert, color="#16a34a", linestyle="--", linewidth=1, label="scripted expert")
    axes.set(ylabel="mean reward", title=f"{curve.title}: reward by the adapter that served the run")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=8)


def _bars(points: Sequence[tuple[float, float, int]], bounds: tuple[float, float]) -> tuple[list[float], list[float]]:
    """(mean, standard error, count) → how far each interval reaches below and above its mean."""
    below, above = [], []
    for mean, error, n in points:
        low, high = mean_interval(mean, error * math.sqrt(n), n, *bounds) if n else (mean, mean)
        below.append(mean - low)
        above.append(high - mean)
    return below, above


def _draw_counts(axes: Axes, curve: LearningCurve, axis: str) -> None:
    x = [_x(p, axis) for p in curve.versions]
    gaps = [after - before for before, after in itertools.pairwise(x) if after > before]
    axes.bar(x, [p.count for p in curve.versions], width=0.8 * min(gaps, default=1.0), color="#94a3b8")
    axes.set_ylabel("episodes")
    axes.grid(alpha=0.3)


def _draw_steps(axes: Axes, curve: LearningCurve, axis: str) -> None:
    x = [_x(p, axis) for p in curve.steps]
    nan = float("nan")
    (one,) = axes.plot(x, [nan if p.entropy is None else p.entropy for p in curve.steps], color="#7c3aed")
    axes.set_ylabel("entropy, nats", color="#7c3aed")
    other = axes.twinx()
    (two,) = other.plot(x, [nan if p.kl is None else p.kl for p in curve.steps], color="#ea580c", linewidth=1)
    other.set_ylabel("KL of a step", color="#ea580c")
    axes.legend([one, two], ["entropy", "KL"], fontsize=8, loc="best")
    axes.grid(alpha=0.3)
