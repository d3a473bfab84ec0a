"""Runs of tasks, summed up: what `curves.json` and the table of docs/tasks.md say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from pydantic import BaseModel

TABLE = re.compile(r"(?<=<!-- curves -->\n).*?(?=<!-- /curves -->)", re.DOTALL)
DIGITS = 4
LONG = 256
"""Steps of a run that shows whether what was learned stays."""
LONG_RUN = "long"
"""The kind of such runs, beside "reward" and "ruler"."""


class Run(BaseModel):
    """What one `slipstream demo` found."""

    task: str
    seed: int
    success_base: float
    success_last: float
    error_base: float
    error_last: float
    expert: float
    steps: int
    episodes: int
    calls: int
    train_seconds: float
    failed_calls: int
    judge_calls: int | None = None
    curve: dict[str, Any]

    @property
    def gain(self) -> float:
        """How much of the way from the base model to the expert."""
        way = self.expert - self.success_base
        return (self.success_last - self.success_base) / way if way > 0 else 0.0

    @property
    def slide(self) -> float | None:
        """How far the mean reward of the last quarter of the versions lies below that of the best quarter in a row.

        None: the run was too short to tell.
        """
        points = [(float(v["mean"]), int(v["count"])) for v in self.curve["versions"]]
        quarter = len(points) // 4
        if self.steps < LONG or not quarter:
            return None
        windows = [points[at : at + quarter] for at in range(len(points) - quarter + 1)]
        means = [sum(m * n for m, n in window) / max(1, sum(n for _, n in window)) for window in windows]
        return max(means) - means[-1]

    def told(self) -> str:
        """One line of it."""
        return (
            f"{self.success_base:.3f} ± {self.error_base:.3f} → {self.success_last:.3f} ± {self.error_last:.3f}, "
            f"expert {self.expert:.3f}, gain {self.gain:.2f}, {self.steps} steps in {self.train_seconds:.0f} s, "
            f"{self.episodes} episodes, {self.failed_calls} failed"
        )

    def rounded(self) -> Run:
        """The same with figures of a curve that a reader can use."""
        return self.model_copy(update={"curve": round_all(self.curve)})


def round_all(value: Any) -> Any:
    """Numbers to a few digits, in whatever they are nested."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: round_all(inner) for key, inner in value.items()}
    return [round_all(inner) for inner in value] if isinstance(value, list | tuple) else value


class TaskFigures(TypedDict):
    """Of one task. Rewards are held out, and means over the seeds; `gain` is the least over the seeds, None: not run."""

    base: float
    last: float
    expert: float
    gain: float | None
    gain_ruler: float | None
    steps: int
    seconds: float
    seeds: int
    slide: NotRequired[float]
    """Of the long runs: the worst seed's `Run.slide`."""


class Summary(TypedDict):
    tasks: dict[str, TaskFigures]


def mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def least_gain(runs: Sequence[Run]) -> float | None:
    return round(min(run.gain for run in runs), 3) if runs else None


def summarise(runs: Mapping[tuple[str, str], Sequence[Run]]) -> Summary:
    """(task, kind) → its runs; of a task that was only judged, the judged runs give the rewards.

    Long runs give the slide alone.
    """
    tasks: dict[str, TaskFigures] = {}
    for name in dict.fromkeys(name for name, kind in runs if kind != LONG_RUN):
        rewarded, ruled = runs.get((name, "reward"), []), runs.get((name, "ruler"), [])
        shown = rewarded or ruled
        tasks[name] = {
            "base": round(mean([run.success_base for run in shown]), 3),
            "last": round(mean([run.success_last for run in shown]), 3),
            "expert": round(mean([run.expert for run in shown]), 3),
            "gain": least_gain(rewarded),
            "gain_ruler": least_gain(ruled),
            "steps": round(mean([run.steps for run in shown])),
            "seconds": round(mean([run.train_seconds for run in shown])),
            "seeds": len(shown),
        }
        if slides := [run.slide for run in runs.get((name, LONG_RUN), []) if run.slide is not None]:
            tasks[name]["slide"] = round(max(slides), 3)
    return {"tasks": tasks}


def table(summary: Summary) -> str:
    """The summary as a table in Markdown."""
    rows = [
        "| task | base | last | expert | gain | gain by RULER | steps | seconds | seeds | slide |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, f in summary["tasks"].items():
        gains = ["not run" if gain is None else f"{gain:.2f}" for gain in (f["gain"], f["gain_ruler"])]
        figures = [f"{f['base']:.2f}", f"{f['last']:.2f}", f"{f['expert']:.2f}", *gains]
        counts = [f"{f['steps']}", f"{f['seconds']:.0f}", f"{f['seeds']}", f"{f['slide']:.3f}" if "slide" in f else ""]
        rows.append(f"| {name} | {' | '.join(figures + counts)} |")
    return "\n".join(rows) + "\n"


def fill_table(page: str, summary: Summary) -> str:
    """The page with the table and the tasks' pictures between its two marks. Raises ``ValueError`` where it has no marks."""
    if not TABLE.search(page):
        raise ValueError("the page has no <!-- curves --> and <!-- /curves -->")
    pictures = "".join(
        f"\n![The curve of {name}](images/curves/{name}.png)\n"
        + (f"\n![{LONG} steps of {name}](images/curves/{name}-long.png)\n" if "slide" in figures else "")
        for name, figures in summary["tasks"].items()
    )
    return TABLE.sub(lambda _: table(summary) + pictures, page, count=1)
