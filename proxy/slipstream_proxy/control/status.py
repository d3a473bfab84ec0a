"""Where things stand: the status object and its funnel."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from slipstream import __version__
from slipstream import contract as c
from slipstream.operate.sidecars import StackReport, read_stack, sentence
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.funnel import Surroundings, funnel_of
from slipstream_proxy.control.problem import Problem
from slipstream_proxy.control.threads import in_thread
from slipstream_proxy.data.observe.metrics import read_parts
from slipstream_proxy.store.funnel import FunnelCounts

LOST = "slipstream_capture_lost_total"


def lost_by_workers(folder: Path) -> int:
    """Calls that the data plane's workers served and could not write, by their latest figures."""
    parts = [part for path in folder.glob("data*.json") for part in read_parts(path)]
    return int(sum(value for part in parts for name, _, value in part["values"] if name == LOST))


def surroundings_of(deps: Deps, sidecars: Sequence[c.Sidecar]) -> Surroundings:
    """What the control plane knows without asking the store."""
    config, activity, stats = deps.config, deps.activity, deps.ingester.stats if deps.ingester else None
    expected = bool(config.judge.model or config.judge.function) or activity.ever("judge")
    troubled = [(s.name, s.state, text) for s in sidecars if (text := sentence(s))]
    return Surroundings(
        config=config,
        now=deps.now(),
        engines=[(e.url, e.ok, e.error) for e in deps.engines.engines],
        outages=[(e.url, e.outage) for e in deps.engines.healthy() if e.outage is not None],
        candidates=deps.registry.in_state(c.AdapterState.CANDIDATE),
        trainer_silence=activity.silence("trainer"),
        trainer_away=activity.away("trainer"),
        judge_silence=activity.silence("judge"),
        judge_away=activity.away("judge"),
        judge_expected=expected,
        judge_budget=deps.judges.budget(deps.now()),
        sidecars=troubled,
        held=deps.lease.held is not None,
        behind=deps.fleet.behind,
        store_error=stats.broken if stats else None,
        lag=stats.lag_seconds if stats else 0.0,
    )


async def read_funnel(deps: Deps, stack: StackReport | None = None) -> c.Funnel:
    """Why there is no step yet. It answers while the store is away too, and says so.

    ``stack``: as read a moment ago, so that one answer does not show two states.
    """
    if stack is None:
        stack = await in_thread(read_stack, deps.config.root)
    around = surroundings_of(deps, stack.sidecars)
    around.engine_busy = stack.engine.sentence(time.time()) if stack.engine else None
    counts: FunnelCounts | None = None
    try:
        counts = await deps.ask(deps.store.statistics.funnel, deps.config.judge.name, around.now)
        paused = await deps.switch.state(deps)
        if paused.paused:
            who = "somebody" if paused.by in (None, "-") else paused.by
            around.paused = f"{who}: {paused.reason}" if paused.reason else who
    except Problem as p:
        around.store_error = around.store_error or p.message
    except Exception as e:
        around.store_error = around.store_error or f"{type(e).__name__}: {e}"[:300]
    return funnel_of(counts, around)


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
        judging = await deps.ask(deps.judges.standing, deps.store.judging, deps.now())
    lost = await in_thread(lost_by_workers, deps.config.root / "metrics")
    stats = deps.ingester.stats if deps.ingester else None
    newest = max((a.created for a in deps.registry.items.values()), default=None)
    return c.Status(
        version=__version__,
        started=deps.started,
        models={m: deps.registry.live(m) for m in deps.registry.models},
        engines=[e.told() for e in deps.engines.engines],
        store="postgresql" if (deps.config.store.url or "").startswith("postgresql") else "duckdb",
        episodes=counts.get("episodes", {}),
        groups=counts.get("groups", {}),
        calls=int(counts.get("calls", 0)),
        capture_lost=lost + (stats.skipped if stats else 0) + deps.mutations.writer.lost,
        ingest_lag_seconds=stats.lag_seconds if stats else 0.0,
        steps=int(counts.get("batches", {}).get("trained", 0)),
        last_step=deps.last_step or newest,
        untrainable=counts.get("untrainable", {}),
        waiting=[line.sentence for line in funnel.lines],
        funnel=funnel,
        judging=judging,
        forgetting=deps.forgetter.progress(),
        sidecars=stack.sidecars,
        batch={"batches": counts.get("batches", {}), "missing": counts.get("missing", {})},
    )
