"""Why is there no step yet? Every stage from a call to a live adapter with its fix, in one object.

``slipstream status``, ``slipstream doctor``, the page and the metric ``slipstream_funnel`` all show what ``funnel_of``
returns, so they use the same words.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import tomli_w

from slipstream.config import Config
from slipstream.contract import Adapter, AdapterState, Funnel, FunnelLine, GateReport, JudgeAgreement, ModelLearner
from slipstream.contract.funnel import Severity, Stage
from slipstream.contract.plugins import PluginStatus
from slipstream.engines import DEFAULT_ENGINE, ENGINE_OBJECTS
from slipstream.engines.engine import NEUTRAL_SAMPLING, EngineSampling, NoAdapters
from slipstream.settings.judge import NO_QUOTA, RESTORE_QUOTA
from slipstream.shared.hub import quantised_as
from slipstream.shared.intervals import mean_interval, reward_bounds, told
from slipstream.shared.processes.remedies import remedy
from slipstream_proxy.control.engines.pool import AdapterOutage, EngineLacks, FailedLoad
from slipstream_proxy.control.observe.schedule import ScheduleState
from slipstream_proxy.control.status.refusals import fix_of
from slipstream_proxy.data.observe.losses import Losses
from slipstream_proxy.dialects.untrainable import TRUST_ADVICE, UntrainableReason, find_reason
from slipstream_proxy.store.read.status import RATE_SECONDS, FunnelCounts, RecentCalls, plural, span
from slipstream_proxy.store.values import SAME_REWARD_DISTANCE
from slipstream_proxy.store.write.batches import LEAST_RUNS, MUCH_LONGER

if TYPE_CHECKING:
    from slipstream_proxy.store.read.status import AdapterReward

BLOCKS, SLOWS, REMARK = Severity
Reason = UntrainableReason
_FIELDS: dict[str, tuple[str, ...]] = {
    Reason.TEMPERATURE_0: ("temperature",),
    Reason.PENALTIES: ("presence_penalty", "frequency_penalty", "repetition_penalty"),
}
"""Reason → the fields that it is about."""
_EXPLORED = {
    "siblings": "calls get siblings, which train",
    "temperature": "runs are sampled at a temperature, and train",
}
SHAPED_CAUSES = frozenset(
    (
        *(*_FIELDS, Reason.MIN_TOKENS, Reason.IGNORE_EOS, Reason.LOGIT_BIAS, Reason.STRUCTURED, Reason.FORCED_TOOL),
        *(Reason.RESTRICTED, Reason.ENGINE_SAMPLING, Reason.ENGINE_OPTIONS, Reason.WATERMARK, Reason.THINKING_BUDGET),
    )
)
"""Reasons that lie in how the reply was sampled: its siblings are sampled otherwise."""


def in_the_file(model: str) -> str:
    """The setting that replaces what the engine would take."""
    values = ", ".join(f"{name} = {value:g}" for name, value in NEUTRAL_SAMPLING.items())
    return f'write [models."{model}"] with {values} into slipstream.toml'


def fix_untrainable(reason: str, own: Mapping[str, float] | None = None, model: str = "<name>") -> str:
    """What to change so that such calls train. ``own``: what the engine samples with where a call says nothing."""
    if reason == Reason.ENGINE_SAMPLING or any(name in (own or ()) for name in _FIELDS.get(reason, ())):
        return f"{DEFAULT_ENGINE.neutral_fix}; or {in_the_file(model)}, {TRUST_ADVICE}"
    of_an_engine = {text: fix for engine in ENGINE_OBJECTS.values() for text, fix in engine.fixes.items()}
    if reason in of_an_engine:
        return of_an_engine[reason]
    found = find_reason(reason)
    return found.fix if found is not None else "docs/capture.md lists the reasons"


LOST_GROUP_TEXTS = {
    ("stale", "unknown"): (
        "they were sampled too many versions ago",
        "raise trainer.max_staleness, or raise trainer.min_groups so that versions come more slowly",
    ),
    ("stale", "judge"): (
        "too many versions went live while they waited for the judge",
        "raise judge.concurrency, choose a faster judge.model, or raise trainer.max_staleness",
    ),
    ("stale", "reward"): (
        "too many versions went live while they waited for a reward",
        "post rewards sooner, or raise trainer.max_staleness",
    ),
    ("stale", "forming"): (
        "too many versions went live while they waited for more episodes of their task",
        "run the same task more often at a time, set groups.size lower, or raise trainer.max_staleness",
    ),
    ("stale", "trainer"): (
        "too many versions went live while they waited for the trainer",
        "raise trainer.max_groups, or raise trainer.max_staleness",
    ),
    ("dropped", "unknown"): (
        "their adapter was rolled back, or their episodes were deleted",
        "nothing to do: what a bad adapter sampled must not train the next one",
    ),
    ("dropped", "rolled_back"): (
        "the adapter that sampled them was taken back",
        "nothing to do: what a bad adapter sampled must not train the next one",
    ),
    ("dropped", "deleted"): ("their episodes were deleted", "nothing to do"),
    ("dropped", "nothing_trainable"): (
        "no call in them can be trained on",
        "see the reasons of untrainable calls, and change what the agent sends",
    ),
}
"""(state, cause) → why, and what to do."""


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
        episodes = plural(count, "episode of complete groups has", "episodes of complete groups have")
        text = f"{episodes} no reward '{name}'"
        if name == around.config.judge.name:
            fix = "the judge writes it" if around.judge_expected else "set judge.model, or post it with a judge's key"
        else:
            fix = f"post it to /slipstream/v1/episodes/<id>/rewards as {name!r}, or change reward.weights"
        cause, stuck = f"missing_{name}"[:80], not counts.ready and not counts.leased
        comes = name == around.config.judge.name and around.judge_expected
        severity = REMARK if comes else BLOCKS if stuck else SLOWS
        yield FunnelLine(stage="reward", cause=cause, count=count, text=text, fix=fix, severity=severity)
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


def engine_lines(around: Surroundings) -> Iterator[FunnelLine]:
    down = [(url, error) for url, ok, error in around.engines if not ok]
    if not around.engines and not around.config.engine.urls:
        fix = "set engine.urls, or set engine.model and start with `slipstream up`"
        text = "no engine is configured (engine.urls)"
        yield FunnelLine(stage="engine", cause="not_configured", count=0, text=text, fix=fix, severity=BLOCKS)
    elif down and around.engine_busy:
        fix = "wait; `up.log` in data_dir says how far it is"
        text = around.engine_busy
        yield FunnelLine(stage="engine", cause="starting", count=len(down), text=text, fix=fix, severity=BLOCKS)
    elif not around.engines:
        fix = "start an engine, or see what the name or file of engine.urls says"
        text = f"no engine is up: {', '.join(around.config.engine.urls)} names none"
        yield FunnelLine(stage="engine", cause="down", count=0, text=text, fix=fix, severity=BLOCKS)
    elif len(down) == len(around.engines):
        fix = f"see the log of {down[0][0]} ({down[0][1] or 'it does not answer'}), and start it again"
        text = "no engine answers: calls fail"
        yield FunnelLine(stage="engine", cause="down", count=len(down), text=text, fix=fix, severity=BLOCKS)
    yield from _outages(around, up=len(around.engines) - len(down))
    yield from _lacking(around)
    if around.engine_ended:
        fix = remedy(around.engine_ended) or "see `up.log` in data_dir, above that error"
        yield FunnelLine(stage="engine", cause="ended", count=1, text=around.engine_ended, fix=fix, severity=SLOWS)
    if around.sampling is not None and around.sampling.cuts:
        text = (
            f"the engine samples with {around.sampling.said()} where a call says nothing (its generation_config.json)"
        )
        text += ": such calls are recorded so, and can't be trained on"
        fix = f"{DEFAULT_ENGINE.neutral_fix}; or {in_the_file(around.config.model_name)}"
        yield FunnelLine(stage="engine", cause="generation_config", count=1, text=text, fix=fix, severity=SLOWS)
    if around.held:
        text = "the trainer has the GPU: calls wait until its step is done"
        yield FunnelLine(stage="engine", cause="held", count=1, text=text)
    if around.behind:
        text = f"another proxy's adapter: {around.behind}"
        fix = "mount its adapters folder here too, or take it back with `slipstream demote`"
        yield FunnelLine(stage="engine", cause="behind", count=1, text=text, fix=fix, severity=SLOWS)


def _lacking(around: Surroundings) -> Iterator[FunnelLine]:
    """Engines without an adapter that they are to have, and addresses behind which are several engines."""
    for error in around.lookups:
        fix = "correct engine.urls, or the name or file that it names"
        text = f"engines cannot be looked up: {error}"
        yield FunnelLine(stage="engine", cause="discovery", count=1, text=text, fix=fix, severity=SLOWS)
    for url, several in around.routers:
        those = ", ".join(f'"{u}"' for u in several if u != url) or "the address of each engine behind it"
        text = f"{url} is a router or a Service: an adapter reaches one of the engines behind it, and calls reach all"
        fix = f'set engine.urls = [{those}] and engine.router = "{url}"'
        yield FunnelLine(stage="engine", cause="router_as_engine", count=1, text=text, fix=fix, severity=BLOCKS)
    if around.rewrites is not None:
        text = f"engine.router {around.config.engine.router}: {around.rewrites}"
        fix = "take a router that passes bodies as they are (Envoy, nginx), or leave engine.router out"
        yield FunnelLine(stage="engine", cause="router_rewrites", count=1, text=text, fix=fix, severity=SLOWS)
    alike: dict[str, list[tuple[str, str, FailedLoad]]] = {}
    for url, name, failed in around.lacking:
        fix = (
            failed.error.fix if isinstance(failed.error, EngineLacks) else "compare its vLLM and flags with the others'"
        )
        alike.setdefault(fix, []).append((url, name, failed))
    for fix, found in alike.items():
        url, name, failed = found[0]
        nowhere = [n for _, n, _ in found if n not in around.loaded_somewhere]
        text = f"{url} lacks {name} (for {span(max(0.0, around.now - failed.since))}): {failed.error}"
        text += f", and {len(found) - 1} more" if len(found) > 1 else ""
        text += "; no engine has it" if nowhere else "; calls with it go to the other engines"
        fix += ". It is asked again by itself"
        line = FunnelLine(stage="engine", cause="adapter_lacking", count=len(found), text=text, fix=fix)
        yield line.model_copy(update={"severity": BLOCKS if nowhere else SLOWS})


def _outages(around: Surroundings, up: int) -> Iterator[FunnelLine]:
    """A line for each cause and fix. Its count is the seconds since the first of these engines took no adapters."""
    alike: dict[tuple[str, str], list[tuple[str, AdapterOutage]]] = {}
    for url, outage in around.outages:
        alike.setdefault((outage.cause.value, outage.fix), []).append((url, outage))
    none_takes = len(around.outages) >= up
    for (cause, fix), found in alike.items():
        these, s = ("the engine", "s") if len(found) == 1 else ("these engines", "")
        if cause == NoAdapters.NO_IDS:
            text = f"{these} {', '.join(url for url, _ in found)} give{s} no token ids: calls are relayed, recorded as "
            text += "text, judged and exported, and never trained on"
            yield FunnelLine(stage="engine", cause=cause, count=len(found), text=text, fix=fix, severity=BLOCKS)
            continue
        lasted = [(url, max(0.0, around.now - outage.since)) for url, outage in found]
        engines = ", ".join(f"{url} (for {span(age)})" for url, age in lasted)
        text = f"{these} {engines} take{s} no adapters: {found[0][1].what}"
        text += (
            "; agents get the base model, and adapters wait until it takes them"
            if none_takes
            else "; calls with an adapter go to the other engines"
        )
        count, severity = round(max(age for _, age in lasted)), BLOCKS if none_takes else SLOWS
        yield FunnelLine(stage="engine", cause=cause, count=count, text=text, fix=fix, severity=severity)


ENGINE_GAP = 0.08
"""Nats a token. bf16 on both sides is 0.001 to 0.05; an engine whose graphs were wrong had 0.1 to 1.5."""
RECENT_SECONDS = 600.0
"""For which what happened still speaks of now."""
LAG_SHOWN_S = 5.0
"""Seconds that the store is behind the spool, from which on it is said."""
SHOWN_SECONDS = 86_400.0
"""For which a loss is shown."""
RIGHT_JUDGE = "correct judge.model, judge.api_base or the judge's server"
SOON_S = 60.0
"""Seconds: what ends by itself within them needs nobody."""


@dataclass(slots=True)
class Surroundings:
    """What the funnel needs beside the store's numbers."""

    config: Config
    now: float
    engines: list[tuple[str, bool, str | None]] = field(default_factory=list)
    """(URL, whether it answers, its error)."""
    outages: list[tuple[str, AdapterOutage]] = field(default_factory=list)
    """(URL, why it takes no adapters) of the engines that are up and take none."""
    lacking: Sequence[tuple[str, str, FailedLoad]] = ()
    """(URL, adapter, why) of what an engine that is up was to have and has not."""
    loaded_somewhere: Collection[str] = ()
    """Adapters that some engine has."""
    lookups: Sequence[str] = ()
    """Why names or files of engine.urls say nothing."""
    rewrites: str | None = None
    """What engine.router makes of requests."""
    routers: Sequence[tuple[str, Sequence[str]]] = ()
    """(URL, the engines behind it) of what is configured as one engine."""
    text_only: bool = False
    """An engine gives no token ids: then no call of any is trained on."""
    sampling: EngineSampling | None = None
    """What the engines sample with where a call says nothing; None: as the model likes."""
    candidates: list[Adapter] = field(default_factory=list)
    """Adapters that the gate has not decided on."""
    replayed: Sequence[Adapter] = ()
    """Adapters that are tried on recorded steps, or stay without a verdict of that."""
    served: Sequence[Adapter] = ()
    """The version that new episodes get, of each model."""
    slots: Sequence[Adapter] = ()
    """Versions that running episodes keep in the engines, while a newer one has no slot."""
    pins: Mapping[str, int] = field(default_factory=dict)
    """Adapter → open episodes."""
    pace: tuple[int, float] = (4, 30.0)
    """Groups that a step needs, and seconds after which fewer are enough: as the trainer asked last."""
    learners: Sequence[ModelLearner] = ()
    """The trainer that learns for each model, and those that wait."""
    trainer_silence: float = 0.0
    """Seconds since the trainer last asked for work."""
    trainer_away: bool = False
    judge_silence: float = 0.0
    judge_away: bool = False
    judge_expected: bool = False
    """A judge is configured, or one has asked for work."""
    judge_budget: tuple[str, float] | None = None
    """The setting whose budget the judge waits for, and the seconds until it starts again."""
    judge_error: str | None = None
    judge_chance: JudgeAgreement | None = None
    """Why the judge scored nothing of late, if it failed."""
    sibling_steps: int = 0
    """Steps that wait for an idle engine, to be sampled once more."""
    sibling_tokens: Mapping[str, int] = field(default_factory=dict)
    """Model → tokens that siblings sampled today."""
    sidecars: Sequence[tuple[str, str, str]] = ()
    """The children of `slipstream up` that are in trouble: (trainer or judge, its state, what is wrong)."""
    paused: str | None = None
    """Who paused training, and why."""
    schedule: ScheduleState = field(default_factory=ScheduleState)
    """Whether the trainer's schedule is open."""
    engine_busy: str | None = None
    """What `slipstream up` says of its engine, while that does not answer."""
    engine_ended: str | None = None
    """What that engine ended with, if it was started again not long ago."""
    held: bool = False
    """The trainer has the GPU."""
    behind: str | None = None
    """What another proxy made live and this one cannot load."""
    store_error: str | None = None
    missing: str | None = None
    """Segments of the spool that the store has not read, and that are gone."""
    lag: float = 0.0
    """Seconds that the store is behind the spool."""
    losses: Losses = field(default_factory=Losses)
    uncaptured: Mapping[str, int] = field(default_factory=dict)
    """Calls that workers answered and could not write down."""
    split_names: Mapping[str, int] = field(default_factory=dict)
    """Field → names of sessions there under which several conversations began."""
    refused_writes: int = 0
    """Rewards and other changes that were answered 503, because they could not be written down."""
    refused_at: float = 0.0
    """When the last of them was."""
    turned_away: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    """Status → calls that the proxy refused with it before any engine saw them, and when the last was."""
    plugins: Sequence[PluginStatus] = ()
    lost_folders: Sequence[tuple[str, str]] = ()
    """Versions that new episodes get and whose folder is gone, and the folder."""


def funnel_of(counts: FunnelCounts | None, around: Surroundings) -> Funnel:
    """``counts`` None: the store does not answer."""
    lines = [*_folders(around), *engine_lines(around), *_store(counts, around), *_losses(around)]
    recent = counts.recent if counts is not None else RecentCalls()
    lines += [*_clock(recent, around), *call_lines(recent, around)]
    rewards = (unweighted_lines, reward_lines, flat_lines)
    if around.text_only:  # nothing can be trained, so that nothing is said of what training waits for
        for stage in (_calls, _judge):
            lines += stage(counts, around) if counts is not None else ()
        return Funnel(lines=sorted(lines, key=_badness))
    stages = (_calls, _episodes, _groups, _siblings, _judge, *rewards, _untrainable, _lost, _ready, _trainer, _steps)
    for stage in stages:
        lines += stage(counts, around) if counts is not None else ()
    lines += _slots(around)
    lines += _gate(around)
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


def _folders(around: Surroundings) -> Iterator[FunnelLine]:
    for name, folder in around.lost_folders:
        text = f"the folder of {name}, which new episodes get, is gone ({folder}): an engine that starts cannot load it"
        fix = f"bring the folder back from a backup, or `slipstream adapters demote {name}`"
        yield FunnelLine(stage="engine", cause="lost_folder", count=1, text=text, fix=fix, severity=BLOCKS)


def _plugins(around: Surroundings) -> Iterator[FunnelLine]:
    for plugin in around.plugins:
        if plugin.error is not None:
            text = f"the plug-in {plugin.name} fails: {plugin.error}"
            fix = (
                f"mend it, or turn it off with [plugins.{plugin.name}] enabled = false; the proxy's log has the details"
            )
            cause = f"plugin_{plugin.name}"
            yield FunnelLine(stage="plugin", cause=cause, count=plugin.errors, text=text, fix=fix, severity=SLOWS)


GUARDS_ADVICE = "see the lines above, and the docs on the trainer's guards (max_ratio, max_engine_kl, max_grad)"
TURNED_AWAY = {
    401: (
        "they had no API key, or one that is not known",
        "give the agent a key that `slipstream keys list` shows (`slipstream keys add` makes one)",
    ),
    403: ("their API key has no scope inference", "give the agent a key with it (`slipstream keys list` shows scopes)"),
    413: ("they were too large", "raise proxy.body_limit, or send less in one request"),
    429: ("their key's limits were used up", "raise the key's limits, or let the agent ask less at a time"),
}
"""Status of a call that the proxy refused → why, and what to do."""
WELL_AGAIN = 8
"""Calls that were answered after an error, from which on calls are taken to be answered again."""


def call_lines(recent: RecentCalls, around: Surroundings) -> Iterator[FunnelLine]:
    """The agent's calls fail."""
    for status, (count, at) in sorted(around.turned_away.items()):
        if around.now - at > RECENT_SECONDS or status >= 500:
            continue  # of an engine that is away another line speaks
        why, fix = TURNED_AWAY.get(status) or (f"the proxy answered {status}", "see the message that the agent got")
        text = f"{plural(count, 'call was', 'calls were')} refused with {status}, the last "
        text += f"{span(max(0.0, around.now - at))} ago: {why}"
        severity = SLOWS if around.now - recent.answered_at < RECENT_SECONDS else BLOCKS
        yield FunnelLine(stage="calls", cause=f"refused_{status}", count=count, text=text, fix=fix, severity=severity)
    if recent.failed and recent.answered_since < WELL_AGAIN:
        text = f"{recent.failed} of {plural(recent.calls, 'call fails', 'calls fail')}: {recent.status} {recent.error}"
        severity = BLOCKS if 2 * recent.failed >= recent.calls else SLOWS
        fix = fix_of(recent.status, recent.error)
        yield FunnelLine(stage="calls", cause="failing", count=recent.failed, text=text, fix=fix, severity=severity)


def _store(counts: FunnelCounts | None, around: Surroundings) -> Iterator[FunnelLine]:
    if around.store_error or counts is None:
        why = around.store_error or "it does not answer"
        fix = "see the proxy's log; the spool keeps calls and rewards meanwhile"
        text = f"the store takes nothing just now: {why}"
        yield FunnelLine(stage="store", cause="away", count=1, text=text, fix=fix, severity=BLOCKS)
    elif around.lag > LAG_SHOWN_S:
        text = f"the store is {span(around.lag)} behind: it reads the spool's backlog"
        severity = SLOWS if around.lag > SOON_S else REMARK
        yield FunnelLine(stage="store", cause="behind", count=round(around.lag), text=text, severity=severity)


def _clock(recent: RecentCalls, around: Surroundings) -> Iterator[FunnelLine]:
    back = recent.last_at - around.now
    if back > SOON_S:
        text = (
            f"the clock is {span(back)} behind the newest call's: it was set back, or the call came from another proxy"
        )
        fix = "run an NTP client (`timedatectl set-ntp true`): leases, groups and idle episodes go by the clock"
        yield FunnelLine(stage="store", cause="clock", count=round(back), text=text, fix=fix, severity=SLOWS)


def _losses(around: Surroundings) -> Iterator[FunnelLine]:
    """What was lost on a disk that takes nothing, for a day; and what was refused there."""
    lost, refused = around.losses, around.refused_writes
    if around.missing:
        text, _, fix = around.missing.partition(" Stop the proxy")
        fix = f"stop the proxy{fix}"
        yield FunnelLine(stage="calls", cause="missing", count=1, text=text.rstrip("."), fix=fix, severity=BLOCKS)
    fix = "free space under data_dir, or mend its disk: calls are recorded again by themselves"
    if lost.calls and around.now - lost.at < SHOWN_SECONDS:
        ago = span(max(0.0, around.now - lost.at))
        what = plural(lost.calls, "call was", "calls were")
        text = f"{what} answered and not recorded, the last {ago} ago: {lost.why}"
        severity = BLOCKS if around.now - lost.at < RECENT_SECONDS else SLOWS
        yield FunnelLine(stage="calls", cause="lost", count=lost.calls, text=text, fix=fix, severity=severity)
    if refused and around.now - around.refused_at < SHOWN_SECONDS:
        what = plural(refused, "reward or end mark was", "rewards and end marks were")
        text = f"{what} refused (503), because the disk took nothing"
        fix = "free space under data_dir, or mend its disk: then send them again"
        yield FunnelLine(stage="calls", cause="refused", count=refused, text=text, fix=fix, severity=SLOWS)


def _calls(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    asked = {"capture": "x-slipstream-capture: off", "split": "x-slipstream-split: off"}
    found = [(around.uncaptured[by], header) for by, header in asked.items() if around.uncaptured.get(by)]
    unseen = sum(count for count, _ in found)
    if unseen:
        text = f"{plural(unseen, 'call was', 'calls were')} relayed and not recorded since the proxy's start, because "
        text += " or ".join(f"their header {header} asked for it" for _, header in found)
        fix = "leave the header out of the agent's calls to record them" if not counts.live else None
        severity = REMARK if counts.live else BLOCKS
        yield FunnelLine(stage="calls", cause="uncaptured", count=unseen, text=text, fix=fix, severity=severity)
    if unseen and not counts.live:
        return
    lost = around.losses.calls and around.now - around.losses.at < SHOWN_SECONDS
    if not counts.live and (lost or around.store_error or around.lag > LAG_SHOWN_S):
        pass  # calls may have come: a line above says why they are not here
    elif not counts.live:
        fix = "set the agent's OPENAI_BASE_URL to the proxy's address with /v1"
        text = "no call has come through the proxy yet"
        text += f" ({plural(counts.calls, 'call was', 'calls were')} imported)" if counts.calls else ""
        yield FunnelLine(stage="calls", cause="none", count=0, text=text, fix=fix, severity=BLOCKS)
    elif not counts.trained_calls and not counts.untrainable and not around.text_only:
        fix = f'let the agent ask for {around.config.model_name}, or map its model name in [models."<name>"]'
        fix += "; `slipstream distill --from NAME` trains on what another model answered"
        text = "calls have come, and none asks for the trained model"
        count = counts.calls
        yield FunnelLine(stage="calls", cause="untrained_model", count=count, text=text, fix=fix, severity=BLOCKS)
    fix = (
        "their calls were refused, or never came here: post rewards and done marks to the x-slipstream-episode that "
        "the replies carry, with the key that made the calls"
    )
    if n := counts.orphans.rewarded:
        text = f"{plural(n, 'unknown episode has', 'unknown episodes have')} rewards but no calls"
        yield FunnelLine(stage="calls", cause="orphan_rewards", count=n, text=text, fix=fix, severity=SLOWS)
    if n := counts.orphans.ended:
        text = f"{plural(n, 'unknown episode was', 'unknown episodes were')} marked as done and made no calls"
        yield FunnelLine(stage="calls", cause="orphan_marks", count=n, text=text, fix=fix, severity=SLOWS)
    for name, n in sorted(around.split_names.items()):
        several = plural(n, "session is named", "sessions are named")
        text = f"{several} in {name} by what many runs share, a hash or a tenant: each conversation is an episode"
        remedy = f"name runs with x-slipstream-episode, or take {name} out of [identity]"
        yield FunnelLine(stage="calls", cause="shared_session_name", count=n, text=text, fix=remedy, severity=REMARK)


def _episodes(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    if counts.open_episodes and not 0 < counts.recent.calls <= counts.recent.failed:  # else their end helps nobody
        text = f"{plural(counts.open_episodes, 'episode is', 'episodes are')} still open"
        if counts.next_end is not None:
            text += f"; without another call the next one ends in {span(max(0.0, counts.next_end - around.now))}"
        fix = "post the final reward, or send x-slipstream-done with the last call, and it ends at once"
        done = counts.outcomes or counts.forming.groups or counts.evaluating.groups or counts.missing or counts.ready
        soon = counts.next_end is not None and counts.next_end - around.now <= SOON_S
        severity, count = REMARK if done or soon else SLOWS, counts.open_episodes
        yield FunnelLine(stage="episodes", cause="open", count=count, text=text, fix=fix, severity=severity)
    if counts.without_task:
        text = f"{plural(counts.without_task, 'episode has', 'episodes have')} no task, so nothing compares them"
        fix = "send x-slipstream-task, or set groups.ungrouped = true"
        count, stuck = counts.without_task, counts.without_task >= counts.train_episodes
        severity = BLOCKS if stuck else SLOWS
        yield FunnelLine(stage="episodes", cause="no_task", count=count, text=text, fix=fix, severity=severity)
    if counts.lone:
        text = f"the latest untagged runs have one call each, and {counts.lone} of them go on with what was said before"
        fix = (
            "something before the conversation changes with each call, such as a clock in the system prompt: send "
            "x-slipstream-episode, or start the agent with `slipstream connect NAME --run` (docs, Coding agents)"
        )
        yield FunnelLine(stage="episodes", cause="lone", count=counts.lone, text=text, fix=fix, severity=SLOWS)
    if counts.trained_calls and not counts.train_episodes:
        text = "all episodes are evaluation episodes (split = eval): they measure and never train"
        fix = "leave x-slipstream-split out for the runs to learn from"
        yield FunnelLine(stage="episodes", cause="all_eval", count=counts.calls, text=text, fix=fix, severity=BLOCKS)


def _groups(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    size, max_age = around.config.groups.size, around.config.groups.max_age
    if forming := counts.forming.groups:
        text = (
            f"{plural(forming, 'group is', 'groups are')} forming with "
            f"{plural(counts.forming.episodes, 'episode', 'episodes')}: {size} episodes of one task make a group"
        )
        fix = (
            f"run each task {size} times, or set groups.size lower; two episodes are enough after "
            f"groups.max_age ({span(max_age)})"
        )
        done = counts.ready or counts.leased or counts.missing or counts.outcomes
        alone = forming >= size and counts.forming.episodes == forming
        if alone:
            text += ", and no task has come twice"
        severity = REMARK if done or not alone else BLOCKS
        yield FunnelLine(stage="groups", cause="forming", count=forming, text=text, fix=fix, severity=severity)
    if evaluating := counts.evaluating.groups:
        groups = plural(evaluating, "evaluation group forms", "evaluation groups form")
        text = f"{groups} with {plural(counts.evaluating.episodes, 'episode', 'episodes')}: never trained on"
        yield FunnelLine(stage="groups", cause="evaluation", count=evaluating, text=text)


def _judge(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    yield from _sidecar("judge", around, BLOCKS if around.config.judge.name in counts.missing else SLOWS)
    if not around.judge_expected:
        return
    if counts.to_judge:
        rate = counts.judged / (RATE_SECONDS / 60)
        lag = max(0.0, around.now - (counts.oldest_to_judge or around.now))
        text = (
            f"{plural(counts.to_judge, 'group waits', 'groups wait')} for the judge, the oldest for {span(lag)}; "
            f"it scores {rate:.1f} episodes a minute"
        )
        slow = lag > SOON_S and around.judge_error is None
        fix = "raise judge.concurrency, choose a faster judge.model, or lower judge.votes" if slow else None
        severity = SLOWS if slow else REMARK
        yield FunnelLine(stage="judge", cause="waiting", count=counts.to_judge, text=text, fix=fix, severity=severity)
        yield from _judge_fails(counts, around)
        if around.judge_budget is not None:
            setting, wait = around.judge_budget
            text = f"the judge's budget is spent ({setting}); it starts again in {span(wait)}"
            fix = f"raise {setting}, or choose a cheaper judge.model"
            severity = BLOCKS if wait > SOON_S and not (counts.ready or counts.leased) else SLOWS
            yield FunnelLine(stage="judge", cause="budget", count=round(wait), text=text, fix=fix, severity=severity)
        if around.judge_away and not _in_trouble("judge", around):
            text = f"the judge has not asked for work for {span(around.judge_silence)}"
            fix = "start `slipstream judge` (or `slipstream up`), and see its log"
            wanted, silence = around.config.judge.name in around.config.reward.weights, round(around.judge_silence)
            severity = BLOCKS if wanted else SLOWS
            yield FunnelLine(stage="judge", cause="away", count=silence, text=text, fix=fix, severity=severity)
    if (found := around.judge_chance) is not None and around.judge_error is None:
        text = (
            f"the judge scores by chance: its votes on the same runs in another order agree by {found.value or 0:.2f} "
            f"over {plural(found.pairs, 'group', 'groups')} (1 is full agreement, 0 is chance)"
        )
        fix = "choose a larger judge.model, or post rewards; `slipstream judge eval` measures a judge"
        yield FunnelLine(stage="judge", cause="chance", count=found.pairs, text=text, fix=fix, severity=SLOWS)
    if counts.parked:
        text = f"{plural(counts.parked, 'group is', 'groups are')} parked: the judge failed too often"
        text += f" ({counts.failures['parked']})" if "parked" in counts.failures else ""
        fix = f"{RIGHT_JUDGE}; then `slipstream judge retry` hands them out again"
        wanted = around.config.judge.name in around.config.reward.weights
        stuck = wanted and not (counts.judged or counts.ready or counts.leased)
        severity = BLOCKS if stuck else SLOWS
        yield FunnelLine(stage="judge", cause="parked", count=counts.parked, text=text, fix=fix, severity=severity)


def _judge_fails(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    if around.judge_error is None or around.judge_budget is not None:
        return
    stuck = around.config.judge.name in around.config.reward.weights and not (counts.ready or counts.leased)
    text = f"the judge fails: {around.judge_error}"
    fix = f"{RIGHT_JUDGE}; waiting groups are tried again by themselves"
    if NO_QUOTA.search(around.judge_error):
        text = f"the judge's API has no quota left: {around.judge_error}"
        fix = RESTORE_QUOTA
    severity = BLOCKS if stuck else SLOWS
    yield FunnelLine(stage="judge", cause="failing", count=counts.to_judge, text=text, fix=fix, severity=severity)


def _untrainable(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    recent = counts.recent
    never = counts.trained_calls <= sum(counts.untrainable.values())
    stuck = 0 < recent.trained <= recent.untrainable and (never or not counts.ready)
    many = 2 * recent.untrainable > recent.trained
    for reason, count in counts.untrainable.items():
        text = f"{plural(count, 'call', 'calls')} can't be trained on: {reason}"
        if reason == Reason.ENGINE_SAMPLING and around.sampling is not None and around.sampling.known:
            text += ", which the proxy did not know yet when it answered them"
            fix = "nothing to do: the proxy knows it now, and further calls train"
            yield FunnelLine(stage="untrainable", cause=reason[:80], count=count, text=text, fix=fix, severity=REMARK)
            continue
        own = around.sampling.values if around.sampling else {}
        fix = fix_untrainable(reason, own, around.config.model_name)
        severity = BLOCKS if stuck else SLOWS if many else REMARK
        explores = {
            name: route
            for name, route in around.config.models.items()
            if (route.explore is not None and reason in _FIELDS)
            or (route.explore == "siblings" and reason in SHAPED_CAUSES)
        }
        if explores:
            gives = (
                f"{name}: {route.explore_share:.0%} of such {_EXPLORED[str(route.explore)]}"
                for name, route in explores.items()
            )
            whole = explores.keys() >= {around.config.model_name, *around.config.models}
            fix = f"nothing to do where explore is set (model {', '.join(gives)})" + ("" if whole else f"; else {fix}")
            severity = REMARK if whole else severity
        yield FunnelLine(stage="untrainable", cause=reason[:80], count=count, text=text, fix=fix, severity=severity)


def _siblings(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    """Steps of agents that are sampled once more."""
    routes = [r for r in around.config.models.values() if r.explore == "siblings"]
    if not routes:
        return
    if not around.judge_expected:
        text = "siblings of agents' steps train nothing: no judge compares them"
        needed = "set judge.model or judge.function"
        yield FunnelLine(stage="judge", cause="siblings", count=counts.siblings, text=text, fix=needed, severity=SLOWS)
        return
    spent, most = sum(around.sibling_tokens.values()), sum(r.explore_tokens for r in routes)
    text = f"{plural(counts.siblings, 'sibling', 'siblings')} of agents' steps so far, {spent} of {most} tokens today"
    fix: str | None = None
    if around.sibling_steps:
        text += f"; {plural(around.sibling_steps, 'step waits', 'steps wait')} for the engine's idle time"
    elif counts.calls and not counts.siblings:
        fix = "wait for calls; only chat completions with recorded token ids have siblings"
    if spent >= most:
        fix = 'wait for tomorrow (UTC), or raise models."<name>".explore_tokens'
    yield FunnelLine(stage="groups", cause="siblings", count=counts.siblings, text=text, fix=fix)


def _lost(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    for (state, cause), count in sorted(counts.lost.items()):
        why, fix = LOST_GROUP_TEXTS.get((state, cause)) or LOST_GROUP_TEXTS[state, "unknown"]
        if cause == "judge" and "lost" in counts.failures:
            why, fix = f"{why}, which failed: {counts.failures['lost']}", RIGHT_JUDGE
        fix += "; `slipstream train --from-store` trains on them all the same" if state == "stale" else ""
        text = f"{plural(count, 'group was', 'groups were')} lost: {why}"
        severity = REMARK if fix.startswith("nothing") else SLOWS
        yield FunnelLine(
            stage="lost", cause=f"{state}_{cause}"[:80], count=count, text=text, fix=fix, severity=severity
        )


def _ready(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    need, patience = around.pace
    teaching, runs, since, words, early, heard = counts.teaching
    ready = counts.ready - words - early
    if around.config.trainer.algorithm == "sft":  # imitation compares nothing: every group counts
        teaching, runs = ready, LEAST_RUNS
    waits = patience if runs >= LEAST_RUNS else MUCH_LONGER * patience
    waited = around.now - (around.now if since is None else since)
    few = teaching + heard // LEAST_RUNS < need and not (teaching + words and waited >= waits)
    if words + early:
        text = f"{plural(words + early, 'piece of feedback waits', 'pieces of feedback wait')}: "
        text += f"{early} until the run is over" if early else ""
        text += ", " if early and words else ""
        if words and few:
            text += f"{words} for more of them (a step takes one of a run; {LEAST_RUNS} count as a group, and {need} "
            text += "groups are a step) or "
            text += span(waits - waited)
        elif words:
            text += f"{words} ready: {_then(counts, around)}"
        yield FunnelLine(stage="ready", cause="words", count=words + early, text=text)
    if ready and few:
        text = f"{plural(ready, 'group', 'groups')} complete and scored, {need} needed for a step"
        if need > around.config.trainer.min_groups:
            text += ", because many runs are several versions old when they end"
        if teaching < ready:
            text += f"; of them {plural(teaching, 'has', 'have')} runs that differ in reward, and only such count"
        fix = "a step is taken sooner with fewer groups if trainer.min_groups or trainer.max_wait is lower"
        if since is not None:
            why = f", because they have fewer than {LEAST_RUNS} runs ({runs})" if runs < LEAST_RUNS else ""
            left = span(waits - waited)
            text += f"; fewer are taken in {left}, when the first of them has waited {span(waits)}{why}"
        yield FunnelLine(stage="ready", cause="too_few", count=ready, text=text, fix=fix)
    elif ready:
        text = f"{plural(teaching, 'group is', 'groups are')} ready: {_then(counts, around)}"
        if flat := ready - teaching:
            text += (
                f"; {plural(flat, 'more teaches', 'more teach')} nothing: all {'its' if flat == 1 else 'their'} runs "
            )
            text += "got the same reward"
        yield FunnelLine(stage="ready", cause="ready", count=teaching, text=text)
    elif not (counts.leased or counts.again.left or words):
        text = f"0 groups complete and scored, {need} needed for a step"
        yield FunnelLine(stage="ready", cause="none", count=0, text=text)
    yield from _stored(counts)


def _then(counts: FunnelCounts, around: Surroundings) -> str:
    """What comes of that which is ready."""
    if 0 < counts.recent.trained <= counts.recent.untrainable:
        return "the trainer drops what holds no call that can be trained on, as none of the latest can"
    if counts.leased:
        return "the trainer takes them after the batch that it has"
    if around.paused is not None:
        return "they wait until training is resumed"
    if not around.schedule.open:
        return "they wait for the trainer's schedule"
    if around.slots:
        return "the trainer takes them once the version that it made has a slot in the engine"
    if around.replayed:
        return f"the trainer goes a few steps on, and takes the rest once {around.replayed[0].name} is decided"
    return "they wait for the trainer" if around.trainer_away else "the trainer takes them next"


def _stored(counts: FunnelCounts) -> Iterator[FunnelLine]:
    """What is trained on again, and what could be."""
    again = counts.again
    if again.left:
        done = f"{again.passes - again.left} of {plural(again.passes, 'pass is', 'passes are')} done"
        text = f"training on stored groups: {done}, {plural(again.groups, 'group waits', 'groups wait')}"
        text += "; newer groups go first" if counts.ready else ""
        fix = "wait; `slipstream train --from-store --stop` ends it"
        yield FunnelLine(stage="ready", cause="again", count=again.left, text=text, fix=fix)
    if counts.corrected:
        have = plural(counts.corrected, "group has", "groups have")
        text = (
            f"{have} other rewards by now than it was trained with"
            if counts.corrected == 1
            else (f"{have} other rewards by now than they were trained with")
        )
        fix = "`slipstream train --from-store` trains on them with the new ones"
        yield FunnelLine(stage="ready", cause="corrected", count=counts.corrected, text=text, fix=fix)


def _in_trouble(name: str, around: Surroundings) -> bool:
    return any(sidecar == name for sidecar, _, _ in around.sidecars)


def _sidecar(name: Literal["judge", "trainer"], around: Surroundings, severity: Severity) -> Iterator[FunnelLine]:
    """What `slipstream up` knows of its process."""
    for sidecar, state, text in around.sidecars:
        if sidecar == name:
            yield FunnelLine(stage=name, cause=state, count=1, text=text, severity=severity)


def _waiting_trainers(around: Surroundings) -> Iterator[FunnelLine]:
    for one in around.learners:
        if waiting := one.waiting:
            waits = plural(len(waiting), "trainer waits", "trainers wait")
            where = ", ".join(w.place for w in waiting)
            text = f"{waits} ({where}): {one.worker} at {one.place} learns for {one.model}"
            fix = "none is needed if it is a reserve: it goes on when that one has ended; else stop one of them"
            yield FunnelLine(stage="trainer", cause="waits", count=len(waiting), text=text, fix=fix)


def _trainer(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    yield from _sidecar("trainer", around, BLOCKS)
    yield from _waiting_trainers(around)
    if around.paused is not None:
        text = f"training is paused by {around.paused}"
        fix = "slipstream resume"
        yield FunnelLine(stage="trainer", cause="paused", count=1, text=text, fix=fix, severity=BLOCKS)
    elif not around.schedule.open:
        wait = max(1.0, around.schedule.at - around.now)
        at = time.strftime("%a %H:%M", time.localtime(around.schedule.at)) if wait > SOON_S else f"in {span(wait)}"
        text = f"the trainer's schedule is closed: {around.schedule.why}. It goes on {at}"
        text += " at the earliest" if around.config.trainer.schedule.idle is not None else ""
        fix = "wait: groups are kept until then, however old they become; or change trainer.schedule"
        yield FunnelLine(stage="trainer", cause="schedule", count=round(wait), text=text, fix=fix, severity=BLOCKS)
    if counts.leased:
        doing = "with the trainer" if _in_trouble("trainer", around) else "being trained on"
        text = f"{plural(counts.leased, 'group is', 'groups are')} {doing}"
        yield FunnelLine(stage="trainer", cause="training", count=counts.leased, text=text)
    elif around.trainer_away and not around.slots and not _in_trouble("trainer", around):
        text = f"the trainer has not asked for work for {span(around.trainer_silence)}"
        fix = "start `slipstream trainer` (or `slipstream up`), and see its log"
        silence = round(around.trainer_silence)
        yield FunnelLine(stage="trainer", cause="away", count=silence, text=text, fix=fix, severity=BLOCKS)
    if counts.last_skipped is not None:
        text = f"the trainer skipped its latest batch: {counts.last_skipped}"
        same = "different reward" in counts.last_skipped
        fix = "see that the reward tells good runs of a task from bad ones" if same else GUARDS_ADVICE
        yield FunnelLine(stage="trainer", cause="skipped", count=1, text=text, fix=fix, severity=SLOWS)


def _steps(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    small = [kl for kl in counts.kls if kl < 1]
    if counts.kls and len(small) == len(counts.kls):
        latest = plural(len(small), "step", "steps")
        text = f"the latest {latest} hardly changed the policy (KL below a hundredth of a full step's)"
        fix: str | None = 'set trainer.learning_rate = "auto", or raise it'
        if around.config.trainer.learning_rate == "auto":
            text, fix = f"{text}: the learning rate rises by itself; the step events name the cause", None
        severity = SLOWS if fix else REMARK
        yield FunnelLine(stage="step", cause="small_kl", count=len(small), text=text, fix=fix, severity=severity)
    if (gap := counts.engine_gap) is not None and gap > ENGINE_GAP:
        text = (
            f"the engine's log-probabilities are {gap:.2g} nats a token away from the trainer's with the same weights "
            f"(up to {ENGINE_GAP} is usual): the trainer learns from tokens that the model would not choose"
        )
        fix = _closer(around.config)
        yield FunnelLine(stage="step", cause="engine_gap", count=round(1000 * gap), text=text, fix=fix, severity=SLOWS)


def _closer(config: Config) -> str:
    """What brings engine and trainer together."""
    goes_on = "training goes on, slower, with the weight of such tokens capped (trainer.is_max)"
    if config.trainer.quantize == "4bit":
        free = 'set trainer.quantize = "none" if the GPU has room for it'
        return f"the trainer rounds the base to 4 bits: {free}; else {goes_on}"
    if config.engine.model and (kind := quantised_as(config.engine.model)):
        rounds = f"the engine's model is stored as {kind}, and it rounds what the trainer does not"
        return f"{rounds}: serve the unquantised model if the GPU has room for it; else {goes_on}"
    fix = (
        "load the same model in engine and trainer (name, revision, no quantisation), and start vLLM without a "
        "--compilation-config or --kv-cache-dtype of your own"
    )
    formats = config.engine.dtype, config.trainer.dtype
    if "auto" in formats or formats[0] != formats[1]:
        named = "engine.dtype is {}, trainer.dtype is {}".format(*formats)
        fix = f"compute in one number format in engine and trainer ({named}); {fix}"
    return fix


def _slots(around: Surroundings) -> Iterator[FunnelLine]:
    if around.slots:
        count = sum(around.pins.get(a.name, 0) for a in around.slots)
        names = " and ".join(a.name for a in around.slots)
        keep = plural(count, "running episode keeps", "running episodes keep")
        most = around.config.engine.max_loras
        text = f"the next version waits for a slot in the engine: {keep} {names} there (engine.max_loras is {most})"
        patience = span(around.config.adapters.pin_seconds)
        fix = f"end runs with a reward or x-slipstream-done, or raise engine.max_loras; it waits {patience} at most"
        yield FunnelLine(stage="step", cause="slots", count=count, text=text, fix=fix)


def _of_groups(around: Surroundings) -> Iterator[FunnelLine]:
    """Groups of runs that get another version than all others, and those to which a person gave one."""
    by_hand = {(group, a.name) for a in around.served for group in a.given}
    for served in around.served:
        for group, to in served.kept_from.items():
            why = f"{served.name}, or what it was made from, was taken back for them alone"
            if (group, to) in by_hand:
                why = f"a person gave it to them while {served.name} was on trial"
            text = f"new runs of {group} get {to}, because {why}. All others go on with {served.name}"
            give = f"slipstream adapters promote {served.name} --group {shlex.quote(group)}"
            yield FunnelLine(stage="gate", cause="group", count=1, text=text, fix=f"if it is good for them: `{give}`")
        for group in served.given:
            text = f"a person gave {served.name} to {group}: losses of that group alone do not speak against it"
            take = f"slipstream adapters demote {served.name} --group {shlex.quote(group)}"
            yield FunnelLine(stage="gate", cause="given", count=1, text=text, fix=f"to take it back: `{take}`")


def _gate(around: Surroundings) -> Iterator[FunnelLine]:
    gate = around.config.gate
    for adapter in around.replayed:
        replay = adapter.replay
        assert replay is not None
        cases = sum(s.cases for s in replay.sets)
        held = replay.outcome == "undecided"
        text = f"{adapter.name} is tried on recorded steps, in the engine's idle time: {replay.reason}"
        fix = f"wait, or decide by hand: `slipstream adapters promote {adapter.name}`"
        if held:
            text = f"{adapter.name} waits for a person: {replay.reason}"
            fix = f'`slipstream adapters promote {adapter.name}`, add cases, or set gate.replay.undecided = "try"'
        yield FunnelLine(stage="gate", cause="replay", count=cases, text=text, fix=fix)
    yield from _of_groups(around)
    for served in around.served:
        if served.state == AdapterState.LIVE and served.frozen:
            text = f"{served.name} is {served.reason or 'frozen'}. Newer versions wait"
            fix = f"`slipstream adapters unfreeze {served.name}`"
            yield FunnelLine(stage="gate", cause="frozen", count=1, text=text, fix=fix)
    for candidate in around.candidates:
        if gate.trial == "manual":
            text = f"{candidate.name} waits for a person: gate.mode is manual"
            fix = f"`slipstream adapters promote {candidate.name}`, or `slipstream adapters demote {candidate.name}`"
            yield FunnelLine(stage="gate", cause="manual", count=1, text=text, fix=fix)
            continue
        report = candidate.gate or GateReport()
        seen = report.trial_episodes
        control = report.control or "the adapter before it"
        episodes = plural(seen, "episode", "episodes")
        text = f"the gate compares {candidate.name} with {control}: {episodes} on trial so far"
        if report.reason:
            text += f"; {report.reason}"
        if report.episodes_left is not None:
            left = plural(report.episodes_left, "more new run", "more new runs")
            text += f" (a verdict is likely after {left}, of all versions)"
        if report.gets:
            text += f". {report.gets}"
        fix = report.fix or f"wait, or decide by hand: `slipstream adapters promote {candidate.name}`"
        yield FunnelLine(stage="gate", cause="undecided", count=seen, text=text, fix=fix)
