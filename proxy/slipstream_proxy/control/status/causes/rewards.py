"""Causes that lie in rewards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import tomli_w

from slipstream.contract import FunnelLine
from slipstream.shared.intervals import mean_interval, reward_bounds, told
from slipstream_proxy.control.status.causes.surroundings import BLOCKS, REMARK, SLOWS, Surroundings
from slipstream_proxy.store.read.status import FunnelCounts
from slipstream_proxy.store.read.wording import plural
from slipstream_proxy.store.values import SAME_REWARD_DISTANCE

if TYPE_CHECKING:
    from slipstream_proxy.store.read.status import AdapterReward

SHAPE_LEAST = 32
"""Rewarded runs with which something is said of how their rewards are spread."""
LENGTH_ALONE = 0.98
"""Correlation of reward and length from which nothing else shows in the reward."""
CEILING_SHARE = 0.95
"""Share of runs with the best reward from which there is little to learn."""
FLAT_STEPS = 10
"""Steps after which reward should have moved."""
FLAT_EPISODES, FLAT_LEAST = 100, 20
"""Episodes of the newest versions that are enough, and the least with which anything is said."""
LEARNED_GROUPS = 4
"""Recent groups, all equal at the top, after which there is nothing left to learn."""


def unweighted_fix(name: str, weights: Mapping[str, float]) -> str:
    """What to do so that rewards of a name train which ``reward.weights`` does not name."""
    wanted = tomli_w.dumps({"x": {name: 1.0}}).splitlines()[1]
    counts = ", ".join(repr(n) for n, weight in weights.items() if weight) or "nothing"
    return (
        f"this reward is kept and trains nothing, because reward.weights counts {counts}: add `{wanted}` to "
        f"[reward] weights to train on it too"
    )


def unweighted_lines(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    """Scores and rewards that train nothing, because ``reward.weights`` does not name them."""
    weights, judge = around.config.reward.weights, around.config.judge
    siblings = any(r.explore == "siblings" for r in around.config.models.values())
    found = {name: 0 for name in (judge.names or [judge.name] * around.judge_expected) if name not in weights}
    for name, count in (found | counts.unweighted).items():
        wanted = tomli_w.dumps({"x": {name: 1.0}}).splitlines()[1]
        who = "the judge's scores" if name in found else "rewards"
        if siblings and name in found:  # siblings train by them, whatever the weights
            if not count:
                continue
            who += " of agents' own runs"
        text = f"{who} named {name!r} train nothing: {name!r} has no weight in reward.weights"
        if count:
            text += f" ({plural(count, 'episode', 'episodes')} with one wait)"
        fix = f"set [reward] weights = {{ {wanted} }} to train on this alone, or add `{wanted}` to it to train on both"
        if name not in found:
            posted = [repr(name) for name in weights if name not in judge.names]
            fix += f"; or post it as {' and '.join(posted)}" if posted else ""
        judge_comes = around.judge_expected and judge.name in counts.missing
        stuck = bool(counts.missing) and not (judge_comes or counts.ready or counts.leased)
        cause = f"unweighted_{name}"[:80]
        yield FunnelLine(
            stage="reward", cause=cause, count=count, text=text, fix=fix, severity=BLOCKS if stuck else SLOWS
        )


def reward_lines(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    for name, count in counts.missing.items():
        verb = "has" if count == 1 else "have"
        text = (
            f"{count} of {plural(counts.waiting, 'episode', 'episodes')} of complete groups {verb} no reward '{name}'"
        )
        if name == around.config.judge.name:
            fix = "the judge writes it" if around.judge_expected else "set judge.model, or post it with a judge's key"
        else:
            fix = f"post it to /slipstream/v1/episodes/<id>/rewards as {name!r}, or change reward.weights"
        few = 2 * count < counts.waiting  # as where an agent was stopped: its other runs complete other groups
        cause, stuck = f"missing_{name}"[:80], not (counts.ready or counts.leased or few)
        comes = name == around.config.judge.name and around.judge_expected
        severity = REMARK if comes else BLOCKS if stuck else SLOWS
        yield FunnelLine(stage="reward", cause=cause, count=count, text=text, fix=fix, severity=severity)
    if counts.unrewarded:
        runs = plural(counts.unrewarded, "run", "runs")
        text = f"{runs} ended without a reward, and so far taught nothing: the others of their groups train"
        fix = "post a reward for runs that fail, too: else the trainer sees no failure"
        yield FunnelLine(stage="reward", cause="unrewarded", count=counts.unrewarded, text=text, fix=fix)
    shape = list(shape_lines(counts))
    yield from shape
    equal = [o for o in counts.outcomes if o.high - o.low < SAME_REWARD_DISTANCE]
    if not equal or any(found.blocks for found in shape):
        return
    recent = len(counts.outcomes)
    if len(equal) == recent >= LEARNED_GROUPS and all(o.high == counts.best for o in equal):
        why = f"every run of the last {recent} groups has the best reward, {counts.best:g}"
        text = f"training has nothing left to learn: {why}"
        fix = "give the agent harder tasks, or stop the trainer: this adapter is done"
        yield FunnelLine(stage="reward", cause="learned", count=recent, text=text, fix=fix, severity=BLOCKS)
        return
    which = f"{len(equal)} of the last {recent} groups" if recent > 1 else "the last group"
    verb = "teaches nothing: its" if len(equal) == 1 else "teach nothing: their"
    text = f"{which} {verb} rewards are all equal"
    fix = "give partial credit in the reward, mix easier and harder tasks, or sample at temperature 1.0"
    if apart := max(o.high - o.low for o in equal):
        text += f" but for {apart:.1e} at most, which counts as equal"
        fix = "scale the rewards to about 0 to 1"
    severity = BLOCKS if len(equal) == recent else SLOWS if 2 * len(equal) > recent else REMARK
    yield FunnelLine(stage="reward", cause="equal", count=len(equal), text=text, fix=fix, severity=severity)


def shape_lines(counts: FunnelCounts) -> Iterator[FunnelLine]:
    """A reward that says the same of every run, or only how long a run was, or nothing more of nearly all of them."""
    shape = counts.shape
    if shape is None or shape.n < SHAPE_LEAST:
        return
    if counts.best is None or counts.worst is None or counts.best - counts.worst < SAME_REWARD_DISTANCE:
        text = f"all {shape.n} rewards of the newest runs are {shape.high:g}, and no run ever got another"
        fix = "try the reward or the judge on a run that you know is good and on one that is bad: both must differ"
        yield FunnelLine(stage="reward", cause="constant", count=shape.n, text=text, fix=fix, severity=BLOCKS)
    elif shape.same >= SHAPE_LEAST and counts.best is not None and shape.newest < counts.best:
        text = f"the reward has not varied in the last {shape.same} runs, which all have {shape.newest:g}"
        fix = "see whether the reward, the judge or the agent broke: try the reward on a run that you know is good"
        yield FunnelLine(stage="reward", cause="unvaried", count=shape.same, text=text, fix=fix, severity=SLOWS)
    elif shape.length is not None and abs(shape.length) >= LENGTH_ALONE:
        which = "longer" if shape.length > 0 else "shorter"
        kind = "rank correlation" if shape.ranked else "correlation"
        text = (
            f"rewards follow the number of sampled tokens alone ({kind} {shape.length:+.2f} over the newest "
            f"{shape.n} runs): training makes runs {which}"
        )
        fix = "let the reward or the rubric say what a good result is; a length may cost a little beside it"
        yield FunnelLine(stage="reward", cause="length", count=shape.n, text=text, fix=fix, severity=SLOWS)
    elif CEILING_SHARE * shape.n <= shape.at_best < shape.n:
        text = f"{shape.at_best} of the newest {shape.n} runs have the best reward that their task ever had: few teach"
        fix = "give the agent harder tasks, or let the reward tell good runs from better ones"
        yield FunnelLine(stage="reward", cause="ceiling", count=shape.at_best, text=text, fix=fix, severity=SLOWS)


def flat_lines(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    """After many steps the newest versions do no better than the base model, as far as can be told."""
    if counts.trained < FLAT_STEPS:
        return
    for model in sorted({version.model for version in counts.standing}):
        own = [version for version in counts.standing if version.model == model]
        seen = min(counts.worst or 0.0, 0.0), max(counts.best or 1.0, 1.0)
        base, newest = _pooled([v for v in own if not v.version], seen), _pooled(_newest(own), seen)
        if base is None or newest is None or (counts.best is not None and math.isclose(base.mean, counts.best)):
            continue
        if newest.mean - base.mean > 2.0 * math.hypot(base.error, newest.error):
            continue
        text = (
            f"reward is flat after {plural(counts.trained, 'step', 'steps')}: the base model of {model} has {base}, "
            f"the newest versions {newest} (95 % intervals)"
        )
        fix = (
            "see whether the reward tells good runs from bad ones (`slipstream episodes`), whether most calls train "
            "(the lines here), and whether each task recurs; the page's Training shows KL and learning rate"
        )
        yield FunnelLine(stage="reward", cause="flat", count=newest.n, text=text, fix=fix, severity=SLOWS)


class _Pool(NamedTuple):
    n: int
    mean: float
    error: float
    """Standard error of the mean."""
    bounds: tuple[float, float]
    """Between which rewards lie."""

    def __str__(self) -> str:
        """With its 95 % interval, as everywhere."""
        low, high = mean_interval(self.mean, self.error * math.sqrt(self.n), self.n, *self.bounds)
        return f"{told(self.mean, low, high)} in {self.n} runs"


def _newest(versions: Sequence[AdapterReward]) -> list[AdapterReward]:
    """So many of the newest versions that they have ``FLAT_EPISODES``, and no version of the first half."""
    taken: list[AdapterReward] = []
    for version in reversed(versions):
        if not version.version or 2 * version.version < versions[-1].version:
            break
        taken.append(version)
        if sum(v.n for v in taken) >= FLAT_EPISODES:
            break
    return taken


def _pooled(versions: Sequence[AdapterReward], seen: tuple[float, float]) -> _Pool | None:
    """``seen``: the lowest and the highest reward. None: too few episodes to tell."""
    n = sum(v.n for v in versions)
    if n < FLAT_LEAST:
        return None
    mean = sum(v.n * v.mean for v in versions) / n
    spread = sum(v.n * (v.variance + (v.mean - mean) ** 2) for v in versions) / n
    return _Pool(n, mean, math.sqrt(spread / n), reward_bounds(*seen))
