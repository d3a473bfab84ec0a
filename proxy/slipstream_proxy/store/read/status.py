"""Where things stand, in numbers: why there was no step yet, and the statistics that the control plane asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from slipstream.contract import GroupKind, Split
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.log.records import IMPORTED_ID_PREFIX
from slipstream_proxy.store.learning.groups import (
    CORRECTED_CAUSE,
    STALE_STATE,
    Agent,
    Pace,
    TrainingAgain,
    training_again,
)
from slipstream_proxy.store.learning.rewards import RewardTable
from slipstream_proxy.store.read.counts import (
    GroupCounts,
    Orphans,
    StoreCounts,
    count_siblings,
    counts,
    left_unrewarded,
    missing_rewards,
    store_counts,
    untrainable_calls,
    unweighted_rewards,
    waiting_episodes,
    waiting_groups,
)
from slipstream_proxy.store.read.curves import SeenRewards, version_of
from slipstream_proxy.store.read.recent_calls import RecentCalls, recent_calls
from slipstream_proxy.store.read.reward_shape import RewardShape, reward_shape
from slipstream_proxy.store.tables.driver import IN, Driver, Tx
from slipstream_proxy.store.tables.memory import ExactFigure, PacedFigure
from slipstream_proxy.store.tables.rows import load
from slipstream_proxy.store.tables.schema import day_of, table_of
from slipstream_proxy.store.tables.tallies import KeptCount, Tallied, TallyTable
from slipstream_proxy.store.values import SAME_REWARD_DISTANCE, Rules

SIBLING_SPLIT = Split.SIBLING
NEAR_ZERO, SMALL_KL = 0.01, 1e-4
"""Share of its target below which a step's KL is near zero; the same in nats a token, for a step without a target."""
RECENT_GROUPS = 16
"""Groups, and steps, that count as recent."""
MIN_LONE_RUNS = 4
"""Untagged runs of one call that are told about."""
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


@dataclass(frozen=True, kw_only=True)
class DearFigures:
    """Figures that cost a look at every group that waits, or at every episode."""

    missing: dict[str, int]
    """Reward name → episodes of complete groups without it."""
    waiting: int
    """Episodes of those groups, with a reward or without."""
    unweighted: dict[str, int]
    """Reward name without a weight → episodes of those groups that have it."""
    to_judge: int
    """Complete groups with an episode that the judge has not scored."""
    oldest_to_judge: float | None
    best: float | None
    """The highest training reward ever."""
    worst: float | None
    shape: RewardShape | None
    live: bool
    """A call came through the proxy: imported ones are counted too."""
    lone: int
    """Latest untagged runs of one call each that begin with replies of the model: they are parts of longer runs."""
    recent: RecentCalls


class Teaching(NamedTuple):
    """Groups that are ready and from which a step can learn."""

    groups: int
    runs: int
    """Of these groups, and of words."""
    since: float | None
    """When the first of them was ready."""
    words: int = 0
    """Pieces of feedback, each about a run that is over."""
    early: int = 0
    """Pieces of feedback about runs that go on."""
    heard: int = 0
    """Runs that are over, of which a batch has one piece of feedback each."""


class SkippedBatch(NamedTuple):
    reason: str
    """Why the trainer skipped it, in its words."""
    equal: bool
    """The runs of each of its groups had the same reward: there was nothing to compare."""


@dataclass(frozen=True, kw_only=True)
class FunnelFigures:
    """Figures that a look at little finds, whenever it is."""

    outcomes: list[GroupOutcome]
    """Outcomes of the ``RECENT_GROUPS`` latest complete groups that have all rewards."""
    teaching: Teaching
    """Of the groups that are ready: whose runs differ in reward."""
    last_skipped: SkippedBatch | None
    """The latest batch; None: the trainer trained on it."""
    kls: list[float]
    """The KL of each of the latest steps, newest first. Below 1, a step was near zero."""
    aged: tuple[int, int]
    """Calls of these steps that were too old to train on, and all that the steps were handed."""
    engine_gap: float | None
    """Nats a token between the engine's log-probabilities and the trainer's of the same weights, when last known."""
    again: TrainingAgain
    ends: list[tuple[Agent, bool, float]]
    """Of open episodes: agent, whether untagged, and when the latest call of the first of them to end was over."""
    unrewarded: int
    """Runs that left a group because they never got a reward."""


def funnel_figures(tx: Tx, rules: Rules, found: StoreCounts) -> FunnelFigures:
    going = any(t.n for (state, *_), t in found.kept.episodes.items() if state == "open")
    ends = _ends(tx) if going else []
    return FunnelFigures(
        outcomes=_outcomes(tx),
        teaching=_teaching(tx, rules),
        last_skipped=_last_skipped(tx, found),
        kls=_kls(tx),
        aged=_aged(tx),
        engine_gap=_engine_gap(tx),
        again=training_again(tx),
        ends=ends,
        unrewarded=left_unrewarded(tx),
    )


def _live(tx: Tx) -> bool:
    """Whether a call came through the proxy, and not out of an import. The newest day most likely has one."""
    days = tx.all("SELECT day FROM t_days ORDER BY day DESC")
    return any(
        tx.all(f"SELECT 1 FROM {table_of(day)} WHERE id > ? LIMIT 1", (f"{IMPORTED_ID_PREFIX}~",)) for (day,) in days
    )


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
    sql = "SELECT max(reward), min(reward) FROM t_episodes WHERE split = 'train' AND state <> 'deleted'"
    ((best, worst),) = tx.all(sql)
    unscored, oldest = to_judge(tx, judge_name)
    return DearFigures(
        missing=missing_rewards(tx, rules, waiting),
        waiting=waiting_episodes(tx, waiting),
        unweighted=unweighted_rewards(tx, rules, waiting),
        to_judge=unscored,
        oldest_to_judge=oldest,
        best=best,
        worst=worst,
        shape=None if best is None else reward_shape(tx, best, worst),
        live=_live(tx),
        lone=_lone(tx),
        recent=recent_calls(tx),
    )


def _lone(tx: Tx) -> int:
    """How many of the latest untagged runs begin with replies in their conversation, where each has one call."""
    sql = f"""SELECT eid, calls, started FROM t_episodes WHERE untagged AND state = 'done' AND error IS NULL
        ORDER BY ended DESC LIMIT {RECENT_GROUPS}"""
    latest = tx.all(sql)
    if len(latest) < MIN_LONE_RUNS or any(calls != 1 for _, calls, _ in latest):
        return 0
    days = {day for (day,) in tx.all("SELECT day FROM t_days")} & {day_of(started) for _, _, started in latest}
    sql = f"SELECT count(*) FROM {{}} WHERE eid {IN} AND strpos(messages, ?) > 0"
    told = ([eid for eid, _, _ in latest], '"assistant"')
    found = sum(int(tx.all(sql.format(table_of(day)), told)[0][0]) for day in days)
    return found if 2 * found >= len(latest) else 0


@dataclass(frozen=True, kw_only=True)
class FunnelCounts(FunnelFigures, DearFigures):
    """The numbers behind "why is there no step yet". Times are seconds since the epoch."""

    calls: int
    trained_calls: int
    """Calls that asked for a trained model."""
    train_episodes: int
    open_episodes: int
    next_end: float | None
    """When the first of the open episodes ends, if no call comes."""
    longest_idle: float | None
    """When the open episode that has had no call for the longest had its last."""
    without_task: int
    """Done episodes that no group takes because they have no task."""
    forming: Forming
    evaluating: Forming
    judged: int
    """Episodes that the judge scored in the last ``RATE_SECONDS``."""
    parked: int
    ready: int
    leased: int
    lost: dict[tuple[str, str], int]
    """(stale or dropped, cause) → groups."""
    failures: dict[str, str]
    """``parked`` or ``lost`` → what the judge failed with."""
    standing: list[AdapterReward]
    """By version, oldest first."""
    trained: int
    """Batches."""
    stepped_at: float
    """When the newest batch that was trained on was leased."""
    untrainable: dict[str, int]
    siblings: int
    """Further samples of agents' steps."""
    orphans: Orphans
    corrected: int
    """Trained groups whose rewards are others by now."""


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
    sql = f"""SELECT id FROM t_groups WHERE split <> 'eval' AND kind <> 'window'
        AND state IN ('ready', 'leased', 'trained', 'skipped') ORDER BY completed DESC LIMIT {RECENT_GROUPS}"""
    groups = [group for (group,) in tx.all(sql)]
    if not groups:
        return []
    sql = f"SELECT min(reward), max(reward) FROM t_episodes WHERE grp {IN} AND reward IS NOT NULL GROUP BY grp"
    return [GroupOutcome(*row) for row in tx.all(sql, (groups,))]


def _teaching(tx: Tx, rules: Rules) -> Teaching:
    """Where runs share a baseline over groups, or calls have rewards of their own, all groups count."""
    sql = "SELECT id, kind, ready_at, single FROM t_groups WHERE state = 'ready' AND split <> 'eval' AND again = 0"
    rows = tx.all(sql)
    if not rows:
        return Teaching(0, 0, None)
    ready: dict[str, tuple[str, float]] = {group: (kind, at) for group, kind, at, _ in rows}
    said = [(episode, at) for _, kind, at, episode in rows if kind == GroupKind.WORDS]
    asked = ([episode for episode, _ in said],)
    goes_on = (
        {e for (e,) in tx.all(f"SELECT eid FROM t_episodes WHERE eid {IN} AND state = 'open'", asked)} if said else ()
    )
    over = [(episode, at) for episode, at in said if episode not in goes_on]
    heard = len({episode for episode, _ in over})
    sql = f"""SELECT grp, max(reward) - min(reward) >= {SAME_REWARD_DISTANCE}, count(*) FROM t_episodes
        WHERE grp {IN} AND reward IS NOT NULL GROUP BY grp"""
    runs = {
        group: int(n)
        for group, differ, n in tx.all(sql, (list(ready),))
        if differ or rules.credit == "call" or ready[group][0] != GroupKind.TASK
    }
    since = min((*(ready[group][1] for group in runs), *(at for _, at in over)), default=None)
    return Teaching(len(runs), sum(runs.values()) + heard, since, len(over), len(said) - len(over), heard)


def _kls(tx: Tx) -> list[float]:
    """KL of the latest steps, each in units of what counts as near zero: a hundredth of the step's own target."""
    sql = "SELECT data FROM t_events WHERE kind = 'step' ORDER BY id DESC LIMIT 3"
    found = [(d.get("kl"), d.get("kl_target")) for d in (load(data) for (data,) in tx.all(sql))]
    limits = [(kl, NEAR_ZERO * t if isinstance(t, float) and t > 0 else SMALL_KL) for kl, t in found]
    return [abs(kl) / limit for kl, limit in limits if isinstance(kl, int | float)]


def _aged(tx: Tx) -> tuple[int, int]:
    """Calls of the latest steps that were too old to train on, and all that these steps were handed."""
    sql = "SELECT data FROM t_events WHERE kind = 'step' ORDER BY id DESC LIMIT 3"
    steps = [load(data, {}) for (data,) in tx.all(sql)]
    old = sum(int((step.get("untrainable") or {}).get(STALE_STATE, 0)) for step in steps)
    return old, sum(int(step.get("calls") or 0) for step in steps)


def _engine_gap(tx: Tx) -> float | None:
    """Of the newest step that has one: a batch may have no token of the trainer's own weights."""
    sql = "SELECT data FROM t_events WHERE kind = 'step' AND strpos(data, ?) > 0 ORDER BY id DESC LIMIT 1"
    found = [load(data, {}).get("engine_gap") for (data,) in tx.all(sql, ('"engine_gap"',))]
    return float(found[0]) if found and isinstance(found[0], int | float) else None


def _last_skipped(tx: Tx, found: StoreCounts) -> SkippedBatch | None:
    skipped, trained = found.batches.get("skipped"), found.batches.get("trained")
    if skipped is None or (trained is not None and trained.newest > skipped.newest):
        return None
    sql = "SELECT id, reason FROM t_batches WHERE state = 'skipped' ORDER BY created DESC LIMIT 1"
    ((batch, reason),) = tx.all(sql)
    sql = f"""SELECT 1 FROM t_members WHERE batch = ? GROUP BY grp
        HAVING max(reward) - min(reward) >= {SAME_REWARD_DISTANCE} LIMIT 1"""
    return SkippedBatch(reason or "no reason given", equal=not tx.all(sql, (batch,)))


def funnel_counts(
    rules: Rules,
    pace: Pace,
    found: StoreCounts,
    figures: FunnelFigures,
    dear: DearFigures,
    now: float,
    *,
    orphans: Orphans,
    judged: int,
) -> FunnelCounts:
    """``dear``: what was looked up before, as it costs more."""
    kept, states = found.kept, found.groups.states()
    there = {p: tally for p, tally in kept.episodes.items() if p[0] != "deleted" and p[1] != SIBLING_SPLIT}
    trained = found.batches.get("trained")
    return FunnelCounts(
        calls=int(sum(t.x for t in there.values())),
        trained_calls=int(sum(t.y for t in there.values())),
        train_episodes=sum(t.n for (_, split, _), t in there.items() if split == "train"),
        open_episodes=sum(t.n for (state, _, _), t in there.items() if state == "open"),
        next_end=_next_end(figures, pace, now),
        longest_idle=min((end for _, _, end in figures.ends), default=None),
        without_task=0 if rules.ungrouped else sum(t.n for (_, _, apart), t in there.items() if apart == "alone"),
        forming=_forming(found.groups, "train"),
        evaluating=_forming(found.groups, "eval"),
        judged=judged,
        parked=states.get("parked", 0),
        ready=states.get("ready", 0),
        leased=states.get("leased", 0),
        lost=found.groups.lost_by_state(),
        failures=found.groups.failures(),
        standing=standing(kept),
        trained=trained.n if trained else 0,
        stepped_at=trained.newest if trained else 0.0,
        untrainable=untrainable_calls(kept),
        siblings=count_siblings(kept),
        orphans=orphans,
        corrected=sum(row.n for row in found.groups.of("trained") if row.cause == CORRECTED_CAUSE),
        **vars(figures),
        **vars(dear),
    )


class StoreStatistics:
    def __init__(self, db: Driver, rules: Rules, pace: Pace, tallies: TallyTable, rewards: RewardTable) -> None:
        self.db = db
        self.rules = rules
        self.pace = pace
        self.tallies = tallies
        self.rewards = rewards
        self._kept: ExactFigure[Tallied] = ExactFigure()
        self._counts: ExactFigure[StoreCounts] = ExactFigure()
        self._funnel: ExactFigure[FunnelFigures] = ExactFigure()
        self._missing: PacedFigure[dict[str, int]] = PacedFigure()
        self._orphans: PacedFigure[Orphans] = PacedFigure()
        self._dear: PacedFigure[DearFigures] = PacedFigure()
        self._bounds: PacedFigure[dict[str, tuple[float, float]]] = PacedFigure()

    def counts(self, now: float) -> JsonObject:
        """Episodes and groups by state, calls, untrainable by reason, rewards by source, missing rewards by name."""
        stand = self.db.stand()
        orphans = self._orphans.get(None, lambda: self._look_orphans(now), stand)
        with self.db.read() as tx:
            found = self._found(tx, stand)
        waits = any(found.groups.of("waiting_reward"))
        return counts(found, self._missing.get(None, self._look_missing, stand) if waits else {}, orphans.rewarded, now)

    def funnel(self, judge_name: str, now: float) -> FunnelCounts:
        """The numbers behind "why is there no step yet". ``judge_name``: the reward name that the judge writes."""
        stand = self.db.stand()
        dear = self._dear.get(judge_name, lambda: self._look(judge_name), stand)
        orphans = self._orphans.get(None, lambda: self._look_orphans(now), stand)
        with self.db.read() as tx:
            found = self._found(tx, stand)
            figures = self._funnel.get(stand, lambda: funnel_figures(tx, self.rules, found))
            scored = judged(tx, found.kept, now)
        return funnel_counts(self.rules, self.pace, found, figures, dear, now, orphans=orphans, judged=scored)

    def _found(self, tx: Tx, stand: int | None) -> StoreCounts:
        return self._counts.get(stand, lambda: store_counts(tx, self._kept.get(stand, lambda: self.tallies.all(tx))))

    def _tallied(self) -> Tallied:
        stand = self.db.stand()
        with self.db.read() as tx:
            return self._kept.get(stand, lambda: self.tallies.all(tx))

    def success_by_adapter(self) -> list[JsonObject]:
        """For the page: adapter, split, arm, episodes, mean reward, std (of the sample; 0 for one).

        ``first`` and ``last``: when its first and its last rewarded episode began.
        """
        kept = self._tallied().success
        found = [
            dict(zip(("model", "adapter", "split", "arm"), parts, strict=True))
            | {"episodes": t.n, "mean": t.mean, "std": t.spread, "first": t.low, "last": t.high}
            for parts, t in kept.items()
        ]
        return sorted(found, key=lambda r: (r["model"], r["first"], r["split"], r["arm"]))

    def bounds(self) -> dict[str, tuple[float, float]]:
        """Model → between which its runs' rewards lie."""
        return self._bounds.get(None, self._look_bounds, self.db.stand())

    def _look_bounds(self) -> dict[str, tuple[float, float]]:
        with self.db.read() as tx:
            return SeenRewards(tx).by_model

    def rewards_by_source(self) -> list[JsonObject]:
        """Source, adapter, split, count, mean, std (of the sample; 0 for one) of the latest rewards of each name."""
        kept = self._tallied().sources
        return [
            dict(zip(("source", "adapter", "split"), parts, strict=True))
            | {"count": t.n, "mean": t.mean, "std": t.spread}
            for parts, t in sorted(kept.items())
        ]

    def _look(self, judge_name: str) -> DearFigures:
        with self.db.read() as tx:
            return dear_figures(tx, self.rules, judge_name)

    def _look_missing(self) -> dict[str, int]:
        with self.db.read() as tx:
            return missing_rewards(tx, self.rules, waiting_groups(tx))

    def _look_orphans(self, now: float) -> Orphans:
        sql = (
            "SELECT count(DISTINCT eid) FROM t_early m WHERE NOT EXISTS (SELECT 1 FROM t_rewards r WHERE r.eid = m.eid)"
        )
        with self.db.read() as tx:
            return Orphans(self.rewards.count_orphans(tx, now), int(tx.all(sql)[0][0]))
