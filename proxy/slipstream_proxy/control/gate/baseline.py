"""The reward expected of the control on a task, from the past alone: it sharpens the test and cannot bias it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import JsonValue

CONTROL_MEMORY, TESTED_MEMORY, TASK_MEMORY = 300.0, 200.0, 30.0
"""Episodes that a mean remembers: older ones fade."""
WHOLE_MEMORY = 10_000.0
"""As ``CONTROL_MEMORY``, where it matters how rare successes are."""
PRIOR_EPISODES = 3.0
"""Episodes of a task that count as much as knowing nothing of it."""
MAX_TASKS = 4096
"""Tasks remembered; the one not seen for longest goes first."""


class FadingMean:
    def __init__(self, memory: float, value: float = 0.5, n: float = 0.0) -> None:
        self.memory, self.value, self.n = memory, value, n

    def see(self, x: float) -> None:
        self.n = min(self.n + 1.0, self.memory)
        self.value += (x - self.value) / self.n

    def rescale(self, before_low: float, before_high: float, low: float, high: float) -> None:
        """The scale's bounds moved: the same rewards have other units now."""
        reward = before_low + self.value * (before_high - before_low)
        self.value = min(max((reward - low) / (high - low), 0.0), 1.0) if high > low else 0.5


class Baseline:
    """All values are in the scale's units, 0 to 1.

    A task's offset is the mean of how much better its episodes went than their own arm's mean. So both arms teach how
    hard a task is, although the control arm is small.
    """

    def __init__(self) -> None:
        self.control, self.whole = FadingMean(CONTROL_MEMORY), FadingMean(WHOLE_MEMORY)
        """Of the control's newest runs, and of nearly all."""
        self.tested = FadingMean(TESTED_MEMORY)
        self.tasks: dict[str, FadingMean] = {}

    def of(self, task: str) -> float:
        """Expected reward of the control on this task (``""``: not known), from 0 to 1."""
        return min(max(self.control.value + self._offset(task), 0.0), 1.0)

    def of_tested(self, task: str) -> float:
        """The same of the versions on trial; of the control where none has a reward yet."""
        arm = self.tested if self.tested.n else self.control
        return min(max(arm.value + self._offset(task), 0.0), 1.0)

    def _offset(self, task: str) -> float:
        known = self.tasks.get(task)
        return known.value * known.n / (known.n + PRIOR_EPISODES) if known is not None else 0.0

    def see(self, x: float, task: str, *, tested: bool) -> None:
        arm = self.tested if tested else self.control
        arm.see(x)
        if not tested:
            self.whole.see(x)
        if not task:
            return
        known = self.tasks.pop(task, None)
        if known is None:
            known = FadingMean(TASK_MEMORY, 0.0)
            if len(self.tasks) >= MAX_TASKS:
                del self.tasks[next(iter(self.tasks))]
        known.see(x - arm.value)
        self.tasks[task] = known

    def accept(self) -> None:
        """The tested version is the control from now on."""
        if self.tested.n:
            for mean in (self.control, self.whole):
                mean.value, mean.n = self.tested.value, self.tested.n
        self.tested.n = 0.0

    def rescale(self, before_low: float, before_high: float, low: float, high: float) -> None:
        """As ``FadingMean.rescale``."""
        for mean in (self.control, self.whole, self.tested):
            mean.rescale(before_low, before_high, low, high)
        if high > low and before_high > before_low:
            ratio = (before_high - before_low) / (high - low)
            for known in self.tasks.values():
                known.value = min(max(known.value * ratio, -1.0), 1.0)

    def dump(self) -> dict[str, JsonValue]:
        return {
            "control": [self.control.value, self.control.n],
            "whole": [self.whole.value, self.whole.n],
            "tested": [self.tested.value, self.tested.n],
            "tasks": {name: [mean.value, mean.n] for name, mean in self.tasks.items()},
        }

    def load(self, kept: dict[str, JsonValue]) -> None:
        self.control = mean_of(CONTROL_MEMORY, kept["control"])
        self.whole = mean_of(WHOLE_MEMORY, kept.get("whole", kept["control"]))
        self.tested = mean_of(TESTED_MEMORY, kept["tested"])
        tasks = kept["tasks"]
        assert isinstance(tasks, dict)
        self.tasks = {name: mean_of(TASK_MEMORY, value) for name, value in tasks.items()}


def mean_of(memory: float, kept: JsonValue) -> FadingMean:
    if not isinstance(kept, list) or len(kept) != 2:
        raise TypeError(f"not a mean: {kept!r}")
    value, n = kept
    if not isinstance(value, int | float) or not isinstance(n, int | float):
        raise TypeError(f"not a mean: {kept!r}")
    return FadingMean(memory, float(value), float(n))
