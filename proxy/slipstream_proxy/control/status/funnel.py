"""Why is there no step yet? Every stage from a call to a live adapter with its fix, in one object.

``slipstream status``, ``slipstream doctor``, the page and the metric ``slipstream_funnel`` all show what ``funnel_of``
returns, so they use the same words.
"""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.contract import Funnel, FunnelLine
from slipstream.contract.funnel import Severity, Stage
from slipstream_proxy.control.status.causes.calls import call_lines, clock_lines, loss_lines, store_lines, traffic_lines
from slipstream_proxy.control.status.causes.engines import engine_lines, folder_lines
from slipstream_proxy.control.status.causes.judging import judge_lines
from slipstream_proxy.control.status.causes.rewards import flat_lines, reward_lines, unweighted_lines
from slipstream_proxy.control.status.causes.runs import episode_lines, group_lines, lost_group_lines
from slipstream_proxy.control.status.causes.surroundings import RECENT_SECONDS, SLOWS, Surroundings
from slipstream_proxy.control.status.causes.training import ready_lines, step_lines, trainer_lines, untrainable_lines
from slipstream_proxy.control.status.causes.trials import gate_lines, slot_lines
from slipstream_proxy.store.read.recent_calls import RecentCalls
from slipstream_proxy.store.read.status import FunnelCounts


def funnel_of(counts: FunnelCounts | None, around: Surroundings) -> Funnel:
    """``counts`` None: the store does not answer."""
    lines = [*folder_lines(around), *engine_lines(around), *store_lines(counts, around), *loss_lines(around)]
    recent = counts.recent if counts is not None else RecentCalls()
    lines += [*clock_lines(recent, around), *call_lines(recent, around)]
    rewards = (unweighted_lines, reward_lines, flat_lines)
    if around.text_only:  # nothing can be trained, so that nothing is said of what training waits for
        for stage in (traffic_lines, judge_lines):
            lines += stage(counts, around) if counts is not None else ()
        return Funnel(lines=sorted(lines, key=_badness))
    stages = (
        traffic_lines,
        episode_lines,
        group_lines,
        judge_lines,
        *rewards,
        untrainable_lines,
        lost_group_lines,
        ready_lines,
        trainer_lines,
        step_lines,
    )
    for stage in stages:
        lines += stage(counts, around) if counts is not None else ()
    lines += around.of_plugins
    lines += slot_lines(around)
    lines += gate_lines(around)
    lines += _plugins(around)
    if counts is not None and (counts.leased or around.now - counts.stepped_at < RECENT_SECONDS):
        lines = [_while_steps_come(line) for line in lines]
    return Funnel(lines=sorted(lines, key=_badness))


ROOT_STAGES: tuple[Stage, ...] = ("engine", "store", "calls", "trainer", "judge")
"""Where a trouble is the reason for others, in that order."""
OF_RUNS = ("episodes", "groups", "reward", "untrainable")
"""What is counted over past runs: it cannot tell that no step comes where one came."""


def _badness(line: FunnelLine) -> tuple[int, int]:
    return list(Severity).index(line.severity), ROOT_STAGES.index(line.stage) if line.stage in ROOT_STAGES else len(
        ROOT_STAGES
    )


def _while_steps_come(line: FunnelLine) -> FunnelLine:
    return line.model_copy(update={"severity": SLOWS}) if line.blocks and line.stage in OF_RUNS else line


def _plugins(around: Surroundings) -> Iterator[FunnelLine]:
    for plugin in around.plugins:
        if plugin.error is not None:
            text = f"the plug-in {plugin.name} fails: {plugin.error}"
            fix = (
                f"mend it, or turn it off with [plugins.{plugin.name}] enabled = false; the proxy's log has the details"
            )
            cause = f"plugin_{plugin.name}"
            yield FunnelLine(stage="plugin", cause=cause, count=plugin.errors, text=text, fix=fix, severity=SLOWS)
