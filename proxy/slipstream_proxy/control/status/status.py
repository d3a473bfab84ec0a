"""Where things stand: the report and its funnel, its first sentence (is it better, and how sure is that?), and the
metrics that are read from the store for one scrape.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import Counter, generate_latest

from slipstream import __version__
from slipstream import contract as c
from slipstream.config import Config
from slipstream.contract import Adapter, AdapterState
from slipstream.engines.engine import NEUTRAL_SAMPLING, EngineSampling
from slipstream.shared.clock import DAY_S
from slipstream.shared.intervals import difference, mean_interval, reward_bounds, told
from slipstream.shared.processes.sidecars import StackReport, read_stack, sentence, starts_again
from slipstream_proxy.control.adapters.gatekeeper import REWARDS_CHANGED
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.engines.replica import EngineReplica
from slipstream_proxy.control.gate.suspicion import is_frozen
from slipstream_proxy.control.observe.activity import Role
from slipstream_proxy.control.observe.metrics import OTHER_LABEL, RECENT_REWARD_SPAN_S
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.tenant_states import states_of
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.status.causes.surroundings import Surroundings
from slipstream_proxy.control.status.funnel import funnel_of
from slipstream_proxy.control.storage.ingester import spool_bytes
from slipstream_proxy.data.engines.models import ModelMap
from slipstream_proxy.data.observe.losses import read_losses
from slipstream_proxy.data.observe.metrics import WorkerCounts
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.store.read.curves import LearningFilter
from slipstream_proxy.store.read.status import FunnelCounts
from slipstream_proxy.store.read.wording import plural, span

Measured = tuple[float, float, float, int]
"""Mean reward, its interval's ends, runs."""
HANGING_TRAINER_S = 60.0
"""Seconds after which a trainer that has a batch and computes nothing hangs."""
WEEKDAY_AGE_S = 6 * DAY_S
"""A version younger than that is dated by its weekday."""


def headline(
    base: str,
    live: str,
    rows: Iterable[JsonObject],
    versions: Mapping[str, Adapter],
    now: float,
    bounds: tuple[float, float] = (0.0, 1.0),
    changed: float | None = None,
) -> str | None:
    """None: the base model still serves, and none of its runs has a reward. ``rows``: of ``success_by_adapter``.
    ``bounds``: between which the model's rewards lie. ``changed``: since when rewards mean something else, if somebody
    said so. Means of before and after it are not compared.
    """
    mine = [r for r in rows if r["adapter"] == base or r["adapter"] in versions]
    made = [a for a in versions.values() if a.state not in (AdapterState.LOADING, AdapterState.REFUSED)]
    back = {a.name for a in made if a.state == AdapterState.ROLLED_BACK or (a.anew and a.state == AdapterState.RETIRED)}
    count = f"{plural(len(made), 'version', 'versions')}, {len(back)} taken back" if made else "no version yet"
    good = sorted((a for a in made if a.name not in back), key=lambda a: -a.version)
    held_out = _measured(mine, base, "eval", bounds)
    name_of_others = "no held-out runs; training runs"
    if held_out is not None:
        name_of_others = f"held-out {told(*held_out[:3])} with {base} alone; training runs"
    for split, name in (("eval", "held-out"), ("train", name_of_others)):
        names = [live, *(a.name for a in good if a.name != live)] if live != base else []
        kind = "held-out" if split == "eval" else "rewarded"
        newest = next(((a, m) for a in names if (m := _measured(mine, a, split, bounds)) is not None), None)
        first = _measured(mine, base, split, bounds)
        if first is not None and newest is not None:
            of, found = newest[0], {base: first, live: newest[1]}
            d, low, high = difference(found[base][:3], found[live][:3])
            sure = f"better by {low:.2f} to {high:.2f}" if low > 0 else f"worse by {-high:.2f} to {-low:.2f}"
            if low <= 0 <= high:
                sure = f"not sure yet: the difference is {d:+.2f}, between {low:+.2f} and {high:+.2f}"
            since = min(a.created for a in made) if made else now
            after = told(*found[live][:3])
            after += "" if of == live else f" with {of} ({live} has no {kind} run yet)"
            if changed is not None and changed > since:
                sure = f"not to be compared, as rewards have meant something else {_since(changed, now)}"
            return f"{name} {found[base][0]:.2f} → {after} {_since(since, now)}, {count}: {sure} (95 % intervals)"
    for split, name in (("eval", "held-out"), ("train", "training runs")):
        for adapter in (live, base):
            if (one := _measured(mine, adapter, split, bounds)) is not None:
                said = f"{name} {told(*one[:3])} with {adapter}, {count} (95 % interval)"
                alone = made and not any(_measured(mine, a.name, split, bounds) for a in made if a.name != adapter)
                return said + (": nothing to compare it with yet" if alone else "")
    return None


def _measured(rows: list[JsonObject], adapter: str, split: str, bounds: tuple[float, float]) -> Measured | None:
    mine = [r for r in rows if r["adapter"] == adapter and (r["split"] == "eval") == (split == "eval")]
    n = sum(int(r["episodes"]) for r in mine)
    if not n:
        return None
    mean = sum(float(r["mean"]) * int(r["episodes"]) for r in mine) / n
    spread = sum((int(r["episodes"]) - 1) * float(r["std"]) ** 2 for r in mine)
    spread += sum(int(r["episodes"]) * (float(r["mean"]) - mean) ** 2 for r in mine)
    lowest, highest = reward_bounds(min(bounds[0], mean), max(bounds[1], mean))
    return mean, *mean_interval(mean, (spread / max(1, n - 1)) ** 0.5, n, lowest, highest), n


def _since(at: float, now: float) -> str:
    """Of a moment of the last day its age: its weekday's name would say nothing."""
    if now - at < DAY_S:
        return f"in {span(max(0.0, now - at))}"
    return time.strftime("since %A" if now - at < WEEKDAY_AGE_S else "since %d %b %Y", time.localtime(at))


def sampling_of(engines: Sequence[EngineReplica], config: Config) -> EngineSampling | None:
    """What the engines sample with where a call says nothing, and no setting of ours replaces it."""
    known = [e.sampling for e in engines if e.sampling is not None]
    target = ModelMap(config).of(config.model_name)
    ours = {name for name, _ in target.sampling}
    if not known or target.trust or ours >= NEUTRAL_SAMPLING.keys():
        return None
    values = {name: value for name, value in known[0].values.items() if name not in ours}
    return EngineSampling(values, all(s.known for s in known))


def surroundings_of(deps: Deps, sidecars: Sequence[c.Sidecar]) -> Surroundings:
    """What the control plane knows without asking the store."""
    config, activity, stats = deps.config, deps.activity, deps.ingester.stats if deps.ingester else None
    activity.engine_up = deps.engines.up_since
    expected = bool(config.judge.model or config.judge.function) or activity.ever("judge")
    troubled: list[tuple[str, str, str]] = [(s.name, s.state, text) for s in sidecars if (text := sentence(s))]
    for role in ("trainer", "judge"):
        again = (starts_again(s, activity.silence(role), time.time()) for s in sidecars if s.name == role)
        troubled += [(role, "restarted", text) for text in again if text]
    return Surroundings(
        config=config,
        now=deps.now(),
        engines=[(e.url, e.ok, e.error) for e in deps.engines.engines],
        sampling=sampling_of(deps.engines.healthy(), deps.config),
        outages=[(e.url, e.outage) for e in deps.engines.healthy() if e.outage is not None],
        lacking=[(e.url, name, failed) for e in deps.engines.takers() for name, failed in e.failed.items()],
        loaded_somewhere={name for e in deps.engines.healthy() for name in e.loaded},
        lookups=list(deps.engines.discovery.errors.values()),
        rewrites=deps.engines.rewrites,
        use=deps.engines.use(),
        settings=deps.engines.news,
        routers=[(e.url, e.several) for e in deps.engines.healthy() if e.several],
        text_only=any(not e.server.gives_ids for e in deps.engines.engines),
        plugins=deps.plugins.all(),
        pace=activity.pace or (config.trainer.min_groups, config.trainer.max_wait),
        candidates=deps.rollout.registry.in_state(c.AdapterState.CANDIDATE),
        replayed=[
            a for a in deps.rollout.registry.in_state(c.AdapterState.LOADING) if a.replay is not None and not a.forced
        ],
        served=[a for model in deps.rollout.registry.models if (a := deps.rollout.registry.served(model)) is not None],
        slots=deps.rollout.swapper.held() if deps.rollout.swapper.is_full() else [],
        pins=deps.rollout.registry.pins,
        trainer_silence=activity.silence("trainer"),
        trainer_away=activity.away("trainer"),
        trainer_came=activity.ever("trainer"),
        judge_silence=activity.silence("judge"),
        judge_away=activity.away("judge"),
        judge_expected=expected,
        judge_budget=deps.judges.budget(deps.now()),
        judge_error=deps.judges.error(deps.now()),
        judge_chance=deps.judges.chance(deps.now()),
        sidecars=troubled,
        held=deps.lease.held is not None,
        behind=deps.rollout.fleet.behind,
        store_error=stats.broken if stats else None,
        archive_error=deps.archive_error,
        missing=stats.missing if stats else None,
        lag=stats.lag_seconds if stats else 0.0,
        losses=read_losses(config.root / "metrics"),
        workers=WorkerCounts(config.root / "metrics"),
        refused_writes=deps.mutations.refused,
        refused_at=deps.mutations.refused_at,
        lost_folders=[
            (a.name, str(deps.rollout.registry.files.folder(a)))
            for model in deps.rollout.registry.models
            if (a := deps.rollout.registry.served(model)) is not None and not deps.rollout.registry.files.exist(a)
        ],
    )


async def read_funnel(deps: Deps, stack: StackReport | None = None) -> c.Funnel:
    """Why there is no step yet. It answers while the store is away too, and says so.

    ``stack``: as read a moment ago, so that one answer does not show two states.
    """
    if stack is None:
        stack = await in_thread(read_stack, deps.config.root)
    around = surroundings_of(deps, stack.sidecars)
    if stack.engine:
        around.engine_busy, around.engine_ended = stack.engine.sentence(time.time()), stack.engine.ended(time.time())
    counts: FunnelCounts | None = None
    try:
        counts = await deps.ask(deps.store.statistics.funnel, deps.config.judge.name, around.now)
        around.learners = await deps.ask(deps.store.learners.all, around.now)
        for found in stack.sidecars if counts.leased else ():
            sidecar = heard(deps, found, stack.pids.get(found.name), at_work=found.name == "trainer")
            if sidecar.name == "trainer" and sidecar.state == "silent":
                around.sidecars = [*around.sidecars, ("trainer", "silent", f"the trainer hangs: {sidecar.reason}")]
        around.of_plugins = await deps.plugins.lines(counts, judged=around.judge_expected)
        paused = await deps.switch.state(deps)
        if paused.paused:
            who = "somebody" if paused.by in (None, "-") else paused.by
            around.paused = f"{who}: {paused.reason}" if paused.reason else who
        around.schedule = await deps.schedule.state(deps)
    except Problem as p:
        around.store_error = around.store_error or p.message
    except Exception as e:
        around.store_error = around.store_error or f"{type(e).__name__}: {e}"[:300]
    return funnel_of(counts, around)


def headlines_of(
    deps: Deps, rows: list[JsonObject], bounds: Mapping[str, tuple[float, float]], changed: float | None = None
) -> dict[str, str]:
    registry, found = deps.rollout.registry, {}
    for model in registry.models:
        versions = {a.name: a for a in registry.items.values() if a.model == model}
        seen = bounds.get(model, (0.0, 1.0))
        found[model] = headline(registry.base, registry.live(model), rows, versions, deps.now(), seen, changed)
    on_trial = canaries_of(deps)
    return {m: f"{text}. {on_trial[m]}" if m in on_trial else text for m, text in found.items() if text is not None}


def canaries_of(deps: Deps) -> dict[str, str]:
    tried = deps.rollout.registry.in_state(c.AdapterState.CANDIDATE)
    return {a.model: a.gate.gets for a in tried if a.gate is not None and a.gate.gets}


def heard(deps: Deps, sidecar: c.Sidecar, pid: int | None, *, at_work: bool) -> c.Sidecar:
    """The supervisor sees that a process is there. That it works shows in what it asks, and in what it computes."""
    role: Role = "judge" if sidecar.name == "judge" else "trainer"
    if sidecar.state == "running" and at_work and (still := deps.activity.still(role, pid)) > HANGING_TRAINER_S:
        why = f"it has a batch, and has computed nothing for {span(still)}: see its log, or restart it"
        return sidecar.model_copy(update={"state": "silent", "reason": why})
    # a trainer whose version has no slot in the engine asks for no batch
    at_work |= role == "trainer" and deps.rollout.swapper.is_full()
    if sidecar.state != "running" or at_work or not deps.activity.away(role):
        return sidecar
    why = f"it has not asked for work for {span(deps.activity.silence(role))}: see its log, or restart it"
    return sidecar.model_copy(update={"state": "silent", "reason": why})


async def _forgetting(deps: Deps) -> c.Forgetting:
    dropped = deps.ingester.stats.dropped if deps.ingester else 0
    shared = deps.stores.shared and deps.store_answers
    elsewhere = await deps.ask(deps.store.deletion.elsewhere, deps.now()) if shared else []
    return deps.forgetter.progress().model_copy(update={"dropped": dropped, "elsewhere": elsewhere})


async def status_of(deps: Deps) -> c.Status:
    stack = await in_thread(read_stack, deps.config.root)
    funnel = await read_funnel(deps, stack)
    try:
        counts = await deps.ask(deps.store.statistics.counts, deps.now())
    except Exception:
        if not any(line.stage == "store" for line in funnel.lines):
            raise
        counts = {}  # the funnel says that the store is away
    judging = c.JudgingStatus(judges=deps.judges.judges(deps.now()))
    if counts:
        judging = await deps.ask(deps.judges.standing, deps.store, deps.now())
    rows = await deps.ask(deps.store.statistics.success_by_adapter) if counts else []
    bounds = await deps.ask(deps.store.statistics.bounds) if counts else {}
    changed = await deps.ask(deps.store.events.latest, (REWARDS_CHANGED,)) if counts else None
    lost = await in_thread(read_losses, deps.config.root / "metrics")
    stats = deps.ingester.stats if deps.ingester else None
    newest = max((a.created for a in deps.rollout.registry.items.values()), default=None)
    leased = counts.get("groups", {}).get("leased", 0)
    return c.Status(
        version=__version__,
        started=deps.started,
        tenant=deps.config.tenant,
        tenants=0 if deps.config.tenant else len(await in_thread(states_of, deps.config.root)),
        models={m: deps.rollout.registry.live(m) for m in deps.rollout.registry.models},
        canaries=canaries_of(deps),
        headlines=headlines_of(deps, rows, bounds, changed.at if changed is not None else None),
        engines=[e.told() for e in deps.engines.engines],
        adapter_use=deps.engines.use(),
        learners=await deps.ask(deps.store.learners.all, deps.now()) if counts else [],
        plugins=deps.plugins.all(),
        store="postgresql" if (deps.config.store.url or "").startswith("postgresql") else "duckdb",
        episodes=counts.get("episodes", {}),
        siblings=int(counts.get("siblings", 0)),
        groups=counts.get("groups", {}),
        calls=int(counts.get("calls", 0)),
        capture_lost=lost.calls + (stats.skipped_calls if stats else 0),
        refused_writes=deps.mutations.refused,
        ingest_lag_seconds=stats.lag_seconds if stats else 0.0,
        steps=int(counts.get("batches", {}).get("trained", 0)),
        last_step=deps.last_step or newest,
        moved_episodes=dict(+deps.rollout.swapper.moves),
        untrainable=counts.get("untrainable", {}),
        waiting=[line.sentence for line in funnel.lines],
        funnel=funnel,
        judging=judging,
        forgetting=await _forgetting(deps),
        space=await deps.space.measured(),
        sidecars=[
            heard(deps, s, stack.pids.get(s.name), at_work=s.name == "trainer" and bool(leased)) for s in stack.sidecars
        ],
        batch={"batches": counts.get("batches", {}), "missing": counts.get("missing", {})},
    )


log = logging.getLogger(__name__)
LOOK_EVERY = 2.0
"""Seconds for which counts from the store are good: a scrape must not cost a query each."""
LOOK_PATIENCE = 1.0
"""Seconds that a scrape waits for them; the data plane gives the control plane two."""
ADAPTER_LABELS = 50
"""Adapters with series of their own in the reward metrics: the newest. Bounds the number of series."""
MAX_NAMES = 30
ENDLESS_SPAN_S = 1e12
STATE_NAMES = {
    "episodes": ("open", "done", "failed"),
    "groups": ("forming", "waiting_reward", "ready", "leased", "trained", "parked"),
}
"""They have a series with 0 too, so that a query of one has an answer."""


class MetricsScrape:
    """Fills the metrics for one scrape: from the control plane's own objects, and from the store's counts."""

    def __init__(self, deps: Deps) -> None:
        self.deps, self.metrics = deps, deps.metrics
        self._looked = 0.0
        self._leased = False
        """The trainer has groups."""
        self._looking: asyncio.Task[None] | None = None
        self._done: dict[str, float] = {}
        """Counter → what it had been raised to at the last scrape."""

    def _add(self, name: str, counter: Counter, now: float) -> None:
        counter.inc(max(0.0, now - self._done.get(name, 0.0)))
        self._done[name] = now

    def _own(self) -> None:
        deps, m = self.deps, self.metrics
        stats = deps.ingester.stats if deps.ingester else None
        m.store_up.set(bool(deps.health.up and deps.stores.current is not None and stats and stats.broken is None))
        if stats:
            m.lag.set(stats.lag_seconds)
            self._add("records", m.ingested, stats.records)
            m.unreadable.set(stats.unreadable)
            m.skipped.set(stats.skipped)
            m.torn.set(stats.torn)
        a = deps.rollout.registry
        self._add("swaps", m.swaps, deps.rollout.lifecycle.swaps)
        self._add("rollbacks", m.rollbacks, deps.rollout.lifecycle.rollbacks)
        for cause, count in deps.rollout.swapper.moves.items():
            self._add(f"moves {cause}", m.moves.labels(cause), count)
        self._add("losses", m.engine_restarts, deps.engines.restarts)
        for name, count in deps.engines.use().model_dump().items():
            self._add(name, m.adapter_use[name], count)
        for how, count in deps.lease.ended.items():
            self._add(how, m.holds.labels(how), count)
        self._add("held", m.held_seconds, deps.lease.seconds_held())
        m.loaded.set(len(deps.engines.loaded()))
        m.states.clear()
        for item in a.items.values():
            m.states.labels(item.state.value).inc()
        m.pinned.clear()
        # a call may name any model, also one that no engine has: what callers write stays out of metrics
        known = {*a.items, *a.models, *deps.config.models}
        for name, count in sorted(a.pins.items(), key=lambda kv: -kv[1])[:ADAPTER_LABELS]:
            m.pinned.labels(name if name in known else OTHER_LABEL).inc(count)
        for model in a.models:
            m.pinned.labels(model).inc(0)  # where no run is open the series is there, too
            m.live.labels(model).set(a.versions(model)[1])
            m.frozen.labels(model).set(is_frozen(deps.rollout.trials.of(model)))
            m.kept_groups.labels(model).set(len(a.kept_from(model)))
        judged = [(model, self._judged(model)) for model in a.models]
        m.of_trials.gate({(model, v.name): v.gate for model, v in judged if v is not None and v.gate is not None})
        m.sidecar_up.clear()
        leased = self._leased
        stack = read_stack(deps.config.root)
        for found in stack.sidecars:
            sidecar = heard(deps, found, stack.pids.get(found.name), at_work=found.name == "trainer" and leased)
            if sidecar.state != "ended":
                m.sidecar_up.labels(sidecar.name).set(sidecar.state == "running")
        for engine in deps.engines.engines:
            m.engine_up.labels(engine.url).set(engine.ok)
            m.engine_takes_adapters.labels(engine.url).set(engine.outage is None)
            m.engine_lacks_adapters.labels(engine.url).set(len(engine.failed))

    def _judged(self, model: str) -> Adapter | None:
        """The newest version that the gate has looked at."""
        items = [a for a in self.deps.rollout.registry.items.values() if a.model == model and a.gate is not None]
        return max(items, key=lambda a: a.version, default=None)

    async def _recent(self) -> None:
        """The rewards of the last hour, by what runs were for."""
        deps, read = self.deps, self.deps.store.reports.learning.read
        since, points = deps.now() - RECENT_REWARD_SPAN_S, {}
        for model in deps.rollout.registry.models:
            # one span of time holds them all
            wanted = LearningFilter(by="time", bucket=ENDLESS_SPAN_S, each="role", model=model, since=since)
            points[model] = (await deps.ask(read, wanted)).points
        self.metrics.of_trials.rewards(points)

    async def _look(self) -> None:
        deps, m = self.deps, self.metrics
        funnel = await read_funnel(deps)
        m.funnel.clear()
        # alerts ask for these also before there is one: a new series does not show how it grew
        m.funnel.labels("ready", "ready")
        m.events.labels("skipped")
        for line in funnel.lines:
            m.funnel.labels(line.stage, line.cause).set(line.count)
        for model in deps.rollout.registry.models:
            m.waiting_trainers.labels(model).set(0)
        for learner in await deps.ask(deps.store.learners.all, deps.now()):
            m.waiting_trainers.labels(learner.model).set(len(learner.waiting))
        waits = [line.count for line in funnel.lines if (line.stage, line.cause) == ("trainer", "schedule")]
        m.schedule.set(max(waits, default=0))
        m.paused.set(any((line.stage, line.cause) == ("trainer", "paused") for line in funnel.lines))
        counts: JsonObject = await deps.ask(deps.store.statistics.counts, deps.now())
        self._leased = bool((counts.get("groups") or {}).get("leased"))
        success = await deps.ask(deps.store.statistics.success_by_adapter)
        await self._recent()
        for gauge, values in (
            (m.episodes, "episodes"),
            (m.groups, "groups"),
            (m.untrainable, "untrainable"),
            (m.rewards, "rewards"),
        ):
            gauge.clear()
            for state in STATE_NAMES.get(values, ()):
                gauge.labels(state).set(0)
            for label, count in list((counts.get(values) or {}).items())[:MAX_NAMES]:
                number = count.get("count", 0) if isinstance(count, dict) else count
                gauge.labels(str(label)[:80]).set(number)
        m.calls.set(int(counts.get("calls", 0)))
        versions = {a.name: a.version for a in deps.rollout.registry.items.values()}
        m.of_sources.look(await deps.ask(deps.store.statistics.rewards_by_source), versions)
        newest = sorted({str(s["adapter"]) for s in success}, key=lambda n: versions.get(n, 0))[-ADAPTER_LABELS:]
        for gauge in (m.reward_mean, m.reward_std, m.reward_episodes):
            gauge.clear()
        for s in success:
            if str(s["adapter"]) in newest:
                labels = (str(s["adapter"]), str(s.get("split", "")), str(s.get("arm", "")))
                m.reward_episodes.labels(*labels).set(s.get("episodes") or 0)
                for gauge, key in ((m.reward_mean, "mean"), (m.reward_std, "std")):
                    if s.get(key) is not None:
                        gauge.labels(*labels).set(s[key])

    async def text(self) -> bytes:
        """Prometheus' text format. If the store is slow, the series have their values of before; none is left out."""
        self._own()
        if self._looking is None or (self._looking.done() and time.monotonic() - self._looked > LOOK_EVERY):
            self._looking = asyncio.create_task(self._refresh(), name="metrics")
        await asyncio.wait({self._looking}, timeout=LOOK_PATIENCE)
        return bytes(generate_latest(self.metrics.registry))

    async def _refresh(self) -> None:
        deps, m = self.deps, self.metrics
        try:
            m.spool.set(await in_thread(spool_bytes, deps.config.spool_dir))
            if deps.ingester:
                pending, oldest = await in_thread(deps.ingester.backlog)
                m.waiting.set(pending)
                m.age.set(max(0.0, deps.now() - oldest) if oldest else 0.0)
            await self._look()
        except Exception as e:
            log.warning("the store's counts cannot be read for the metrics: %s", e)
        self._looked = time.monotonic()
