"""Rewards become advantages: how much better than its group an episode was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slipstream.contract import is_sibling
from slipstream.errors import ConfigError
from slipstream.settings.trainer import ADVANTAGE_FUNCTIONS
from slipstream.shared.functions import load_function
from slipstream_trainer.algorithm.traffic import Traffic
from slipstream_trainer.batch.rows import Sample

STD_EPSILON = 1e-4
"""TRL's: added to the standard deviation."""
SAME_REWARD_DISTANCE = 1e-8
"""Rewards that differ by less are the same."""
SMALL_ADVANTAGE, LARGE_ADVANTAGE = 1e-3, 30.0
"""Between them are usual advantages. Below, the optimiser's own constants are larger than the gradient. Above, guards
and clipping see the scale alone."""
SMALL_STD_ADVANTAGE = 0.1
"""Below it are advantages of ``std`` alone where ``STD_EPSILON`` is larger than the spread of each group."""
SCALE_DEPENDENT_ADVANTAGES = ("mean", "leave_one_out")
"""Advantages that grow with the rewards' scale."""
BATCH_BASELINE = "batch"
"""The one baseline of all episodes that have no group of their own."""


def by_std(rewards_E: NDArray[np.float64]) -> NDArray[np.float64]:
    """(reward - mean) / (std + 1e-4): GRPO, https://arxiv.org/abs/2402.03300, with the sample's standard deviation as
    TRL has it.
    """
    return np.asarray((rewards_E - rewards_E.mean()) / (rewards_E.std(ddof=1) + STD_EPSILON))


def by_mean(rewards_E: NDArray[np.float64]) -> NDArray[np.float64]:
    """Reward - mean: Dr. GRPO, https://arxiv.org/abs/2503.20783."""
    return np.asarray(rewards_E - rewards_E.mean())


def by_others(rewards_E: NDArray[np.float64]) -> NDArray[np.float64]:
    """Reward - mean of the others: RLOO, https://arxiv.org/abs/2402.14740."""
    n = len(rewards_E)
    return np.asarray((rewards_E - rewards_E.mean()) * n / (n - 1))


def centered(rewards_E: NDArray[np.float64], kind: str) -> NDArray[np.float64]:
    """Advantages of one group's rewards. ``kind``: as in the setting ``trainer.advantage``.

    Raises ``ConfigError`` where a user's function does not give one finite number for each episode.
    """
    if len(rewards_E) < 2:
        return np.zeros(len(rewards_E))
    function = load_function("trainer.advantage", ADVANTAGE_FUNCTIONS.get(kind, kind))
    found: object = function(rewards_E.copy())
    try:
        advantages_E = np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError):
        advantages_E = np.empty(0)
    if advantages_E.shape != rewards_E.shape or not np.isfinite(advantages_E).all():
        raise ConfigError(
            f"trainer.advantage = {kind!r} made {found!r} of the rewards {rewards_E.tolist()}: "
            f"return one finite number for each reward, as an array of shape {rewards_E.shape}"
        )
    return advantages_E


def check_advantage(kind: str) -> None:
    """Try it on three rewards. Raises ``ConfigError``."""
    try:
        centered(np.array([0.0, 0.5, 1.0]), kind)
    except ConfigError:
        raise
    except Exception as e:
        raise ConfigError(
            f"trainer.advantage = {kind!r} fails on the rewards 0, 0.5, 1: {type(e).__name__}: {e}"
        ) from e


@dataclass(slots=True)
class Advantages:
    """What became of a batch's groups. ``dropped`` groups had nothing to compare: all episodes alike, or one alone."""

    episodes: dict[str, float] = field(default_factory=dict)
    """``Sample.run`` → advantage."""
    groups: int = 0
    dropped: int = 0
    nearest: float = 0.0
    """How far rewards of a dropped group are apart at most, which is less than ``SAME_REWARD_DISTANCE``."""
    baselines: dict[str, int] = field(default_factory=dict)
    """What runs were compared with → how many: ``group`` (runs of their task), ``step`` (samples of one step),
    ``batch`` (all ungrouped runs of the batch), ``ema`` (the same, by how far each is from its kind of traffic's fading
    mean), ``call`` (by their calls' own rewards, with those of their group)."""
    reward_mean: float | None = None
    reward_std: float | None = None
    """Mean and spread count kept and dropped runs of agents. None: there are no such runs."""


def assign(
    samples: Sequence[Sample], kind: str, discount: float | None = None, traffic: Traffic | None = None
) -> Advantages:
    """Set each sample's ``advantage``; samples of dropped groups become untrainable (``zero_variance``).

    Groups of kind ``task`` are their own baseline. Ungrouped traffic (``like``, ``window``) shares one over the
    batch. ``traffic`` evens out how its kinds differ, and learns from this batch. Runs are compared with runs, and
    calls that have a reward of their own (``call_reward``, a grade) with each other. A grade that none of its group
    differs from says nothing: its call counts as its run. ``discount``: each call by what comes after it, too
    (``reward.discount``); a call's reward of 0 is then the same as none.

    What cannot be trained on (stale, forced, too long) is in the baseline all the same: its reward is as good as
    the others'. What a user said something about is not compared: its run's reward counts in the run's own group.
    """
    groups: dict[str, list[Sample]] = {}
    for s in samples:
        if np.isfinite(s.reward) and s.hint is None:
            groups.setdefault(s.group if s.kind == "task" else BATCH_BASELINE, []).append(s)
    out = Advantages(groups=len(groups))
    everything: dict[str, float] = {}
    for members in groups.values():
        rewards = {s.run: float(s.reward) for s in members}
        if not is_sibling(members[0].episode):  # a judge's word on a single step is no measure of how runs go
            everything |= rewards
        _compare(members, kind, discount, traffic if members[0].kind != "task" else None, out)
    if everything:
        runs = np.array(list(everything.values()))
        out.reward_mean, out.reward_std = float(runs.mean()), float(runs.std())
    return out


def _compare(
    members: Sequence[Sample], kind: str, discount: float | None, traffic: Traffic | None, out: Advantages
) -> None:
    """One group."""
    rewards = {s.run: float(s.reward) for s in members}
    grades = _grades(members, discount)
    values, given = np.array([*rewards.values()]), np.array([*grades.values()])
    even, even_grades, evened = values, given, np.zeros(len(values), dtype=bool)
    if traffic is not None:
        even, evened = traffic.even_out([*{s.run: s for s in members}.values()], values)
        even_grades, _ = traffic.of_grades().even_out(
            [*{_call(s): s for s in members if _call(s) in grades}.values()], given
        )
    by_grade = bool(len(given)) if discount is not None else not _same(given)
    if _same(values) and not by_grade:
        out.dropped += 1
        out.nearest = max([out.nearest, *(float(np.ptp(x)) for x in (values, given) if len(x) > 1)])
        for s in members:
            _drop(s)
        out.episodes |= dict.fromkeys(rewards, 0.0)
        return
    advantages = dict(zip(rewards, _centered_or_zero(even, kind), strict=True))
    out.episodes |= advantages
    if discount is not None:
        _by_turn(
            members, kind, discount, dict(zip(rewards, even, strict=True)), dict(zip(grades, even_grades, strict=True))
        )
    else:
        of_grades = dict(zip(grades, _centered_or_zero(even_grades, kind), strict=True)) if by_grade else {}
        for s in members:
            s.advantage = of_grades.get(_call(s), advantages[s.run])
    graded = (rewards.keys() if discount is not None else {run for run, *_ in grades}) if by_grade else set()
    step = is_sibling(members[0].episode)
    name = "step" if step else "group" if members[0].kind == "task" else "batch"
    for run, by_kind in zip(rewards, evened, strict=True):
        baseline = "call" if run in graded else "ema" if by_kind else name
        out.baselines[baseline] = out.baselines.get(baseline, 0) + 1


def odd_scale(samples: Sequence[Sample], kind: str) -> tuple[bool, str] | None:
    """(The advantages are too large; why, and what to do), or the same of too small ones. None: they are neither."""
    largest = max((abs(s.advantage) for s in samples if s.trainable), default=0.0)
    least = SMALL_STD_ADVANTAGE if kind == "std" else SMALL_ADVANTAGE
    if largest == 0 or least <= largest <= LARGE_ADVANTAGE:
        return None
    by_std = (
        'set trainer.advantage = "std", which divides by the spread of a group, or '
        if kind in SCALE_DEPENDENT_ADVANTAGES
        else ""
    )
    size = "at most" if largest < least else "up to"
    why = f"the rewards' scale is why: the advantages are {size} {largest:.1e}, and about 1 is usual"
    return largest > LARGE_ADVANTAGE, f"{why}: {by_std}scale the rewards to about 0 to 1"


def _drop(s: Sample) -> None:
    if s.trainable:
        s.trainable, s.reason = False, "zero_variance"


Call = tuple[str, str, int]


def _call(s: Sample) -> Call:
    return s.run, s.call, s.number


def _grades(members: Sequence[Sample], discount: float | None) -> dict[Call, float]:
    """Of the calls that have one."""
    found = {_call(s): s.call_reward for s in members if s.call_reward is not None and np.isfinite(s.call_reward)}
    return {call: float(grade) for call, grade in found.items() if grade or discount is None}


def _same(values: NDArray[np.float64]) -> bool:
    """There is nothing to compare."""
    return len(values) < 2 or bool(np.ptp(values) < SAME_REWARD_DISTANCE)


def returns_of(calls: Mapping[int, float], last: float, discount: float) -> dict[int, float]:
    """Call's number → its own reward and those of the later calls, each discounted once for each call between.
    ``last``: the episode's own reward, which comes with its last call.
    """
    found: dict[int, float] = {}
    after = 0.0
    for place, number in enumerate(sorted(calls, reverse=True)):
        after = calls[number] + (discount * after if place else last)
        found[number] = after
    return found


def _by_turn(
    members: Sequence[Sample], kind: str, discount: float, own: Mapping[str, float], grades: Mapping[Call, float]
) -> None:
    """Each call by its return, against the calls that came as its runs' turn of the same place. A turn that one run
    alone came to is compared with all calls of the group. ``own``: of each run, its reward.
    """
    rewards: dict[str, dict[int, float]] = {}
    for s in members:
        rewards.setdefault(s.run, {})[s.number] = grades.get(_call(s), 0.0)
    returns = {run: returns_of(calls, own[run], discount) for run, calls in rewards.items()}
    turns: dict[int, dict[str, float]] = {}
    for run, found in returns.items():
        for turn, number in enumerate(sorted(found)):
            turns.setdefault(turn, {})[run] = found[number]
    everything = {(run, turn): value for turn, at in turns.items() for run, value in at.items()}
    advantages = dict(zip(everything, _centered_or_zero([*everything.values()], kind), strict=True))
    for turn, at in turns.items():
        if len(at) > 1:
            for run, advantage in zip(at, _centered_or_zero([*at.values()], kind), strict=True):
                advantages[run, turn] = advantage
    place = {run: {number: turn for turn, number in enumerate(sorted(calls))} for run, calls in rewards.items()}
    for s in members:
        s.advantage = advantages[s.run, place[s.run][s.number]]
    if not any(s.advantage for s in members):
        for s in members:
            _drop(s)


def _centered_or_zero(values: Sequence[float] | NDArray[np.float64], kind: str) -> list[float]:
    array = np.array(values, dtype=np.float64)
    if not np.isfinite(array).all() or _same(array):
        return [0.0] * len(array)
    return [float(x) for x in centered(array, kind)]
