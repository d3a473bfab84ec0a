"""The lines of the funnel on rewards: which are missing, which count for nothing, and which teach nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import tomli_w

from slipstream.contract import FunnelLine
from slipstream_proxy.store.counts import plural

if TYPE_CHECKING:
    from slipstream_proxy.control.funnel import Surroundings
    from slipstream_proxy.store.funnel import AdapterReward, FunnelCounts

FLAT_STEPS = 10
"""Steps after which reward should have moved."""
FLAT_EPISODES, FLAT_LEAST = 100, 20
"""Episodes of the newest versions that are enough, and the least with which anything is said."""
LEARNED_GROUPS = 4
"""Recent groups, all equal at the top, after which there is nothing left to learn."""


def unweighted_lines(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    """Scores and rewards that train nothing, because ``reward.weights`` does not name them."""
    weights, judge = around.config.reward.weights, around.config.judge
    found = {name: 0 for name in (judge.names or [judge.name] * around.judge_expected) if name not in weights}
    for name, count in (found | counts.unweighted).items():
        wanted = tomli_w.dumps({"x": {name: 1.0}}).splitlines()[1]
        who = "the judge's scores" if name in found else "rewards"
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
        yield FunnelLine(stage="reward", cause=cause, count=count, text=text, fix=fix, blocks=stuck)


def reward_lines(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    for name, count in counts.missing.items():
        episodes = plural(count, "episode of complete groups has", "episodes of complete groups have")
        text = f"{episodes} no reward '{name}'"
        if name == around.config.judge.name:
            fix = "the judge writes it" if around.judge_expected else "set judge.model, or post it with a judge's key"
        else:
            fix = f"post it to /slipstream/v1/episodes/<id>/rewards as {name!r}, or change reward.weights"
        cause, stuck = f"missing_{name}"[:80], not counts.ready and not counts.leased
        yield FunnelLine(stage="reward", cause=cause, count=count, text=text, fix=fix, blocks=stuck)
    equal = [o for o in counts.outcomes if o.low == o.high]
    if not equal:
        return
    recent = len(counts.outcomes)
    if len(equal) == recent >= LEARNED_GROUPS and all(o.high == counts.best for o in equal):
        why = f"every run of the last {recent} groups has the best reward, {counts.best:g}"
        text = f"training has nothing left to learn: {why}"
        fix = "give the agent harder tasks, or stop the trainer: this adapter is done"
        yield FunnelLine(stage="reward", cause="learned", count=recent, text=text, fix=fix, blocks=True)
        return
    which = f"{len(equal)} of the last {recent} groups" if recent > 1 else "the last group"
    verb = "teaches nothing: its" if len(equal) == 1 else "teach nothing: their"
    text = f"{which} {verb} rewards are all equal"
    fix = "give partial credit in the reward, mix easier and harder tasks, or sample at temperature 1.0"
    stuck = len(equal) == recent
    yield FunnelLine(stage="reward", cause="equal", count=len(equal), text=text, fix=fix, blocks=stuck)


def flat_lines(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    """After many steps the newest versions do no better than the base model, as far as can be told."""
    if counts.trained < FLAT_STEPS:
        return
    for model in sorted({version.model for version in counts.standing}):
        own = [version for version in counts.standing if version.model == model]
        base, newest = _pooled([v for v in own if not v.version]), _pooled(_newest(own))
        if base is None or newest is None or (counts.best is not None and math.isclose(base.mean, counts.best)):
            continue
        if newest.mean - base.mean > 2.0 * math.hypot(base.error, newest.error):
            continue
        text = (
            f"reward is flat after {plural(counts.trained, 'step', 'steps')}: the base model of {model} has {base}, "
            f"the newest versions {newest}"
        )
        fix = (
            "see whether the reward tells good runs from bad ones (`slipstream episodes`), whether most calls train "
            "(the lines here), and whether each task recurs; the page's Training shows KL and learning rate"
        )
        yield FunnelLine(stage="reward", cause="flat", count=newest.n, text=text, fix=fix)


class _Pool(NamedTuple):
    n: int
    mean: float
    error: float
    """Standard error of the mean."""

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.error:.3f} (n = {self.n})"


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


def _pooled(versions: Sequence[AdapterReward]) -> _Pool | None:
    """None: too few episodes to tell."""
    n = sum(v.n for v in versions)
    if n < FLAT_LEAST:
        return None
    mean = sum(v.n * v.mean for v in versions) / n
    spread = sum(v.n * (v.variance + (v.mean - mean) ** 2) for v in versions) / n
    return _Pool(n, mean, math.sqrt(spread / n))
