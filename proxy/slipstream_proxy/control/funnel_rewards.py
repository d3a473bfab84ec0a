"""The lines of the funnel on rewards: which are missing, which count for nothing, and which teach nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import tomli_w

from slipstream.contract import FunnelLine
from slipstream_proxy.store.counts import plural

if TYPE_CHECKING:
    from slipstream_proxy.control.funnel import Surroundings
    from slipstream_proxy.store.funnel import FunnelCounts

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
        line = FunnelLine(stage="reward", cause=f"unweighted_{name}"[:80], count=count, text=text, fix=fix)
        judge_comes = around.judge_expected and judge.name in counts.missing
        stuck = bool(counts.missing) and not (judge_comes or counts.ready or counts.leased)
        yield line.model_copy(update={"blocks": stuck})


def reward_lines(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    for name, count in counts.missing.items():
        text = (
            f"{plural(count, 'episode of complete groups has', 'episodes of complete groups have')} no reward '{name}'"
        )
        if name == around.config.judge.name:
            fix = "the judge writes it" if around.judge_expected else "set judge.model, or post it with a judge's key"
        else:
            fix = f"post it to /slipstream/v1/episodes/<id>/rewards as {name!r}, or change reward.weights"
        line = FunnelLine(stage="reward", cause=f"missing_{name}"[:80], count=count, text=text, fix=fix)
        yield line.model_copy(update={"blocks": not counts.ready and not counts.leased})
    equal = [o for o in counts.outcomes if o.low == o.high]
    if not equal:
        return
    recent = len(counts.outcomes)
    if len(equal) == recent >= LEARNED_GROUPS and all(o.high == counts.best for o in equal):
        text = (
            f"training has nothing left to learn: every run of the last {recent} groups has the best reward, "
            f"{counts.best:g}"
        )
        fix = "give the agent harder tasks, or stop the trainer: this adapter is done"
        yield FunnelLine(stage="reward", cause="learned", count=recent, text=text, fix=fix, blocks=True)
        return
    text = f"{len(equal)} of the last {plural(recent, 'group', 'groups')} teach nothing: their rewards are all equal"
    fix = "give partial credit in the reward, mix easier and harder tasks, or sample at temperature 1.0"
    line = FunnelLine(stage="reward", cause="equal", count=len(equal), text=text, fix=fix)
    yield line.model_copy(update={"blocks": len(equal) == recent})
