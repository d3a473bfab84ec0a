"""The numbers behind "why is there no step yet"."""

from __future__ import annotations

from typing import NamedTuple

from slipstream_proxy.records import IMPORTED
from slipstream_proxy.store.codec import load
from slipstream_proxy.store.counts import (
    StoreCounts,
    missing_rewards,
    untrainable_calls,
    unweighted_rewards,
    waiting_groups,
)
from slipstream_proxy.store.driver import IN, Tx
from slipstream_proxy.store.group_counts import GroupCounts
from slipstream_proxy.store.learning import version_of
from slipstream_proxy.store.pace import Agent, Pace
from slipstream_proxy.store.schema import table_of
from slipstream_proxy.store.tallies import KeptCount, Tallied
from slipstream_proxy.store.values import Rules

NEAR_ZERO, SMALL_KL = 0.01, 1e-4
"""Share of its target below which a step's KL is near zero; the same in nats a token, for a step without a target."""
RECENT = 16
"""Groups, and steps, that count as recent."""
RATE_SECONDS = 600.0
"""Seconds over which the judge's rate is measured."""


class Forming(NamedTuple):
    groups: int
    episodes: int
    oldest: float | None
    """When its first episode ended."""


class GroupOutcome(NamedTuple):
    """Rewards of one complete group."""

    low: float
    high: float


class AdapterReward(NamedTuple):
    """Training rewards of one version's episodes."""

    model: str
    version: int
    """0 is the base model."""
    n: int
    mean: float
    variance: float
    """Of one reward."""


class DearFigures(NamedTuple):
    """Figures that cost a look at every group that waits, or at every episode."""

    missing: dict[str, int]
    unweighted: dict[str, int]
    to_judge: int
    oldest_to_judge: float | None
    best: float | None
    live: bool


class FunnelFigures(NamedTuple):
    """Figures that a look at little finds, whenever it is."""

    outcomes: list[GroupOutcome]
    last_skipped: str | None
    kls: list[float]
    engine_gap: float | None
    ends: list[tuple[Agent, bool, float]]
    """Of open episodes: agent, whether untagged, and when the latest call of the first of them to end was over."""


def funnel_figures(tx: Tx, found: StoreCounts) -> FunnelFigures:
    going = any(t.n for (state, *_), t in found.kept.episodes.items() if state == "open")
    return FunnelFigures(_outcomes(tx), _last_skipped(tx, found), _kls(tx), _engine_gap(tx), _ends(tx) if going else [])


def _live(tx: Tx) -> bool:
    """Whether a call came through the proxy, and not out of an import. The newest day most likely has one."""
    days = tx.all("SELECT day FROM t_days ORDER BY day DESC")
    return any(tx.all(f"SELECT 1 FROM {table_of(day)} WHERE id > ? LIMIT 1", (f"{IMPORTED}~",)) for (day,) in days)


def standing(kept: Tallied) -> list[AdapterReward]:
    """By version, oldest first."""
    found: dict[tuple[int, str], KeptCount] = {}
    for (model, adapter, split, _), tally in kept.success.items():
        if split == "train" and (version := version_of(adapter, model)) is not None:
            before = found.get((version, model), KeptCount(0))
            found[version, model] = KeptCount(before.n + tally.n, before.x + tally.x, before.y + tally.y)
    return [AdapterReward(m, v, t.n, t.mean, t.spread**2) for (v, m), t in sorted(found.items())]


def dear_figures(tx: Tx, rules: Rules, judge_name: str) -> DearFigures:
    """``judge_name``: the reward name that the judge writes."""
    waiting = waiting_groups(tx)
    sql = "SELECT max(reward) FROM t_episodes WHERE split = 'train' AND state <> 'deleted'"
    return DearFigures(
        missing_rewards(tx, rules, waiting),
        unweighted_rewards(tx, rules, waiting),
        *to_judge(tx, judge_name),
        best=tx.all(sql)[0][0],
        live=_live(tx),
    )


class FunnelCounts(NamedTuple):
    """Times are seconds since the epoch."""

    calls: int
    live: bool
    """One of them came through the proxy: imported ones are counted too."""
    trained_calls: int
    """Calls that asked for a trained model."""
    train_episodes: int
    open_episodes: int
    next_end: float | None
    """When the first of the open episodes ends, if no call comes."""
    without_task: int
    """Done episodes that no group takes because they have no task."""
    forming: Forming
    evaluating: Forming
    missing: dict[str, int]
    """Reward name → episodes of complete groups without it."""
    unweighted: dict[str, int]
    """Reward name without a weight → episodes of those groups that have it."""
    to_judge: int
    """Complete groups with an episode that the judge has not scored."""
    oldest_to_judge: float | None
    judged: int
    """Episodes that the judge scored in the last ``RATE_SECONDS``."""
    parked: int
    ready: int
    leased: int
    lost: dict[tuple[str, str], int]
    """(stale or dropped, cause) → groups."""
    outcomes: list[GroupOutcome]
    """Outcomes of the ``RECENT`` latest complete groups that have all rewards."""
    best: float | None
    """The highest training reward ever."""
    standing: list[AdapterReward]
    """By version, oldest first."""
    trained: int
    """Batches."""
    last_skipped: str | None
    """Why the trainer skipped its latest batch; None: it trained on it."""
    kls: list[float]
    """The KL of each of the latest steps, newest first. Below 1, a step was near zero."""
    engine_gap: float | None
    """Nats a token between the engine's log-probabilities and the trainer's of the same weights, when last known."""
    untrainable: dict[str, int]
    orphans: int
    """Episodes that have rewards and no calls."""


def _forming(groups: GroupCounts, split: str) -> Forming:
    rows = list(groups.of("forming", split))
    oldest = min((row.created for row in rows if row.created is not None), default=None)
    return Forming(sum(row.n for row in rows), sum(row.episodes for row in rows), oldest)


def _ends(tx: Tx) -> list[tuple[Agent, bool, float]]:
    sql = "SELECT key, model, untagged, min(last_end) FROM t_episodes WHERE state = 'open' GROUP BY 1, 2, 3"
    return [(Agent(key, model), untagged, end) for key, model, untagged, end in tx.all(sql)]


def _next_end(figures: FunnelFigures, pace: Pace, now: float) -> float | None:
    ends = (end + pace.idle_after(agent, now, untagged=untagged) for agent, untagged, end in figures.ends)
    return min(ends, default=None)


def to_judge(tx: Tx, name: str) -> tuple[int, float | None]:
    """Complete groups with an episode that has no reward of this name, and when the oldest was complete."""
    sql = """SELECT id, completed FROM t_groups
        WHERE kind = 'task' AND NOT parked AND state IN ('waiting_reward', 'eval')"""
    waiting: dict[str, float | None] = dict(tx.all(sql))
    if not waiting:
        return 0, None
    sql = f"""SELECT DISTINCT e.grp FROM t_episodes e WHERE e.grp {IN} AND NOT EXISTS
        (SELECT 1 FROM t_rewards r WHERE r.eid = e.eid AND r.call IS NULL AND r.name = ?)"""
    times = [waiting[group] for (group,) in tx.all(sql, (list(waiting), name))]
    return len(times), min((at for at in times if at is not None), default=None)


def judged(tx: Tx, kept: Tallied, now: float) -> int:
    """Episodes that the judge scored lately."""
    if not kept.rewards.get(("judge",)):
        return 0
    sql = "SELECT count(DISTINCT eid) FROM t_rewards WHERE source = 'judge' AND ts > ?"
    return int(tx.all(sql, (now - RATE_SECONDS,))[0][0])


def _outcomes(tx: Tx) -> list[GroupOutcome]:
    sql = f"""SELECT id FROM t_groups WHERE split = 'train' AND kind <> 'window'
        AND state IN ('ready', 'leased', 'trained', 'skipped') ORDER BY completed DESC LIMIT {RECENT}"""
    groups = [group for (group,) in tx.all(sql)]
    if not groups:
        return []
    sql = f"SELECT min(reward), max(reward) FROM t_episodes WHERE grp {IN} AND reward IS NOT NULL GROUP BY grp"
    return [GroupOutcome(*row) for row in tx.all(sql, (groups,))]


def _kls(tx: Tx) -> list[float]:
    """KL of the latest steps, each in units of what counts as near zero: a hundredth of the step's own target."""
    sql = "SELECT data FROM t_events WHERE kind = 'step' ORDER BY id DESC LIMIT 3"
    found = [(d.get("kl"), d.get("kl_target")) for d in (load(data) for (data,) in tx.all(sql))]
    limits = [(kl, NEAR_ZERO * t if isinstance(t, float) and t > 0 else SMALL_KL) for kl, t in found]
    return [abs(kl) / limit for kl, limit in limits if isinstance(kl, int | float)]


def _engine_gap(tx: Tx) -> float | None:
    """Of the newest step that has one: a batch may have no token of the trainer's own weights."""
    sql = "SELECT data FROM t_events WHERE kind = 'step' AND strpos(data, ?) > 0 ORDER BY id DESC LIMIT 1"
    found = [load(data, {}).get("engine_gap") for (data,) in tx.all(sql, ('"engine_gap"',))]
    return float(found[0]) if found and isinstance(found[0], int | float) else None


def _last_skipped(tx: Tx, found: StoreCounts) -> str | None:
    skipped, trained = found.batches.get("skipped"), found.batches.get("trained")
    if skipped is None or (trained is not None and trained.newest > skipped.newest):
        return None
    reasons = tx.all("SELECT reason FROM t_batches WHERE state = 'skipped' ORDER BY created DESC LIMIT 1")
    return reasons[0][0] or "no reason given"


def funnel_counts(
    rules: Rules,
    pace: Pace,
    found: StoreCounts,
    figures: FunnelFigures,
    dear: DearFigures,
    now: float,
    *,
    orphans: int,
    judged: int,
) -> FunnelCounts:
    """``dear``: what was looked up before, as it costs more."""
    kept, states = found.kept, found.groups.states()
    there = {parts: tally for parts, tally in kept.episodes.items() if parts[0] != "deleted"}
    trained = found.batches.get("trained")
    return FunnelCounts(
        calls=int(sum(t.x for t in there.values())),
        trained_calls=int(sum(t.y for t in there.values())),
        train_episodes=sum(t.n for (_, split, _), t in there.items() if split == "train"),
        open_episodes=sum(t.n for (state, _, _), t in there.items() if state == "open"),
        next_end=_next_end(figures, pace, now),
        without_task=0 if rules.ungrouped else sum(t.n for (_, _, alone), t in there.items() if alone),
        forming=_forming(found.groups, "train"),
        evaluating=_forming(found.groups, "eval"),
        judged=judged,
        parked=states.get("parked", 0),
        ready=states.get("ready", 0),
        leased=states.get("leased", 0),
        lost=found.groups.lost_by_state(),
        outcomes=figures.outcomes,
        standing=standing(kept),
        trained=trained.n if trained else 0,
        last_skipped=figures.last_skipped,
        kls=figures.kls,
        engine_gap=figures.engine_gap,
        untrainable=untrainable_calls(kept),
        orphans=orphans,
        **dear._asdict(),
    )
