"""What was learned: rewards over adapters and over time."""

from __future__ import annotations

from pydantic import Field

from slipstream.contract.base import Model


class LearningPoint(Model):
    """Rewards of the episodes of one adapter or one span of time."""

    series: str | None = None
    """The task, tag's value, split, arm or role that it is of (``each``); None: all together, or episodes without
    one."""
    adapter: str | None = None
    """``no adapter``: of imported episodes, and of those that another server answered."""
    version: int | None = None
    """The adapter's; 0 is the base model."""
    start: float
    """When the first of these episodes began; of a span of time: its beginning."""
    end: float
    n: int
    mean: float
    se: float | None = None
    """Standard error of the mean; None for one episode."""
    low: float
    """The true mean lies between ``low`` and ``high`` in 95 of 100 cases, few runs or many."""
    high: float
    success: float
    """Share of episodes with a reward of ``success_from`` or more."""
    success_se: float | None = None
    success_low: float
    success_high: float
    """The same of the share (Wilson's interval)."""


class Learning(Model):
    """``GET learning``."""

    points: list[LearningPoint]
    """By series, then by version or time."""
    bucket: float | None = None
    """Seconds of a span of time."""
    success_from: float
    left_out: int = Field(default=0)
    """Series that have fewer episodes than those shown."""


class MeasureMean(Model):
    """A mean over ``n`` runs. The true one lies between ``low`` and ``high`` in 95 of 100 cases."""

    n: int
    mean: float
    low: float
    high: float


class TaskRuns(MeasureMean):
    """A task's rewarded runs with the base model, or the latest ones with a version: the mean of their rewards."""

    calls: float
    """Mean of a run, as ``tokens`` that were sampled."""
    tokens: float


class WorstRun(Model):
    key: str
    id: str
    reward: float


class TaskStanding(Model):
    """One task of one trained model."""

    task: str
    model: str
    name: str
    """As the agent named the task."""
    base: TaskRuns | None = None
    now: TaskRuns | None = None
    difference: float | None = None
    """``now`` less ``base``, with its 95 % interval."""
    low: float | None = None
    high: float | None = None
    worst: list[WorstRun] = Field(default_factory=list)
    """Of ``now`` where there are such runs, the lowest reward first."""


class MeasuredRun(Model):
    key: str
    id: str
    value: float


class BehaviourChange(Model):
    """One measure of a run. ``calls of NAME``: how often a run called that tool."""

    measure: str
    base: MeasureMean
    version: MeasureMean
    difference: float
    """``version`` less ``base``, with its 95 % interval."""
    low: float
    high: float
    runs: list[MeasuredRun] = Field(default_factory=list)
    """Of the version: those that show the change most."""


class TaskPair(Model):
    """The newest run of a task with the base model and with the version, as key/episode."""

    task: str
    base: str
    version: str


class Behaviour(Model):
    """``GET adapters/NAME/behaviour``: how runs of a version differ from those of its base model."""

    adapter: str
    base: str
    tasks: int
    """That both have runs of: only these are compared. 0: there is no such task, and all runs are."""
    latest: int
    """At most so many runs of each are compared, the newest."""
    changes: list[BehaviourChange]
    """The surest first. Empty: one of the two has no finished run."""
    pairs: list[TaskPair] = Field(default_factory=list)
    """To look at beside each other: of tasks that both have, those that the version ran last."""


class CostLine(Model):
    """What the stored runs of one version, task or tag took."""

    name: str | None = None
    """None: runs without one, training that is in no version yet, and the sum of all."""
    episodes: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    serving_seconds: float = 0.0
    """Of engines. A moment in which several calls run at one engine is shared among them."""
    training_seconds: float = 0.0
    """Of GPUs: a step counts for each one. By version: the steps that made it. Else: by the tokens of its runs."""
    dollars: float | None = None
    """That the judge's scores cost; None: no price is known."""
    judge_tokens: float = 0.0
    """Of the run's share in what a call of the judge took."""


class CostTable(Model):
    """``GET cost``: the line of most tokens first."""

    lines: list[CostLine]
    total: CostLine
    left_out: int = 0
    """Lines of fewer tokens than those shown. ``total`` counts them."""


class TaskTable(Model):
    """``GET tasks``: the tasks that go worst first."""

    tasks: list[TaskStanding]
    left_out: int = 0
    latest: int
    """``now`` is at most so many runs."""
