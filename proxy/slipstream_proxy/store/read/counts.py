"""How many calls, episodes, groups and batches there are, by state and cause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from slipstream.contract import Split
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.store.learning.groups import CORRECTED_CAUSE
from slipstream_proxy.store.tables.driver import IN, Tx
from slipstream_proxy.store.tables.tallies import OWN_RUNS, STALE_RUNS, Tallied, get_meta
from slipstream_proxy.store.values import Rules

SIBLING_SPLIT = Split.SIBLING
K = TypeVar("K")
LOST_STATES = ("stale", "dropped", "skipped")
"""States of groups from which nothing was learned."""


class AlikeGroups(NamedTuple):
    """Groups that have all of this in common. Times are seconds since the epoch."""

    state: str
    parked: bool
    window: bool
    """Around a single episode, for the judge alone."""
    split: str | None
    """None for trained ones that have no cause: they are not told apart."""
    cause: str | None
    n: int
    episodes: int
    created: float | None
    """When the first one began to form."""
    completed: float | None
    """When the first one was complete."""
    failure: str | None = None
    """What the judge failed with on one of them, where it parked them or let them grow old."""


class Orphans(NamedTuple):
    """Episodes without a call."""

    rewarded: int
    ended: int
    """Marked as done, and without a reward."""


class GroupCounts:
    """Sums over ``AlikeGroups``."""

    def __init__(self, rows: Iterable[AlikeGroups]) -> None:
        self.rows = list(rows)

    def states(self) -> dict[str, int]:
        """State, or ``parked`` → groups; no windows. Those of evaluation runs are ``eval`` while they form, too."""

        def named(row: AlikeGroups) -> str:
            return "parked" if row.parked else "eval" if (row.split, row.state) == ("eval", "forming") else row.state

        return totals((named(row), row.n) for row in self.rows if not row.window)

    def lost(self) -> dict[str, int]:
        """Cause → groups from which nothing was learned, the most frequent first."""
        lost = (
            (row.cause or row.state, row.n)
            for row in self.rows
            if row.cause not in (None, CORRECTED_CAUSE) or row.state in LOST_STATES
        )
        return dict(sorted(totals(lost).items(), key=lambda item: (-item[1], item[0])))

    def lost_by_state(self) -> dict[tuple[str, str], int]:
        """(stale or dropped, cause) → groups; no windows."""
        rows = (row for row in self.rows if not row.window and row.state in ("stale", "dropped"))
        return totals(((row.state, row.cause or "unknown"), row.n) for row in rows)

    def failures(self) -> dict[str, str]:
        """``parked`` or ``lost`` → what the judge failed with."""
        own = [row for row in self.rows if row.failure is not None and not row.window]
        lost = next((row.failure for row in own if row.state in LOST_STATES), None)
        parked = next((row.failure for row in own if row.parked and row.state not in LOST_STATES), None)
        return {name: text for name, text in (("parked", parked), ("lost", lost)) if text is not None}

    def of(self, state: str, split: str | None = None) -> Iterator[AlikeGroups]:
        """No windows. ``split`` None: of all."""
        for row in self.rows:
            if row.state == state and not row.window and split in (None, row.split):
                yield row


def count_groups(tx: Tx) -> GroupCounts:
    """In one pass. Most groups of a store that has grown are trained on and have nothing else to tell."""
    trained = "state = 'trained' AND NOT parked AND kind <> 'window' AND cause IS NULL"
    other = "(state <> 'trained' OR parked OR kind = 'window' OR cause IS NOT NULL)"
    # what is to be trained on again waits in a line of its own
    named = "CASE WHEN again > 0 AND state = 'ready' THEN 'again' ELSE state END"
    sql = f"""SELECT {named}, parked, kind = 'window', split,
        cause, count(*), coalesce(sum(n), 0), min(created),
        min(completed), max(CASE WHEN parked OR cause = 'judge' THEN failure END) FROM t_groups WHERE {other}
        GROUP BY 1, 2, 3, 4, 5
        UNION ALL
        SELECT 'trained', FALSE, FALSE, NULL, NULL, count(*), 0, NULL, NULL, NULL FROM t_groups WHERE {trained}"""
    rows = (
        AlikeGroups(s, p, w, split, cause, int(n), int(eps), *rest)
        for s, p, w, split, cause, n, eps, *rest in tx.all(sql)
    )
    return GroupCounts(row for row in rows if row.n)


def totals(items: Iterable[tuple[K, int]]) -> dict[K, int]:
    """Sums by name."""
    found: dict[K, int] = {}
    for key, n in items:
        found[key] = found.get(key, 0) + n
    return found


class BatchCount(NamedTuple):
    """The trainer's batches of one state."""

    n: int
    newest: float
    """When the newest was leased, in seconds since the epoch."""


class StoreCounts(NamedTuple):
    """What one look at the store finds, whenever it is: nothing here depends on the time of day."""

    kept: Tallied
    groups: GroupCounts
    batches: dict[str, BatchCount]
    lags: list[float]
    """Seconds that each of the latest groups had waited for its rewards."""
    stale_runs: int


def store_counts(tx: Tx, kept: Tallied) -> StoreCounts:
    batches = {
        state: BatchCount(int(n), newest)
        for state, n, newest in tx.all("SELECT state, count(*), max(created) FROM t_batches GROUP BY state")
    }
    sql = """SELECT ready_at - completed FROM t_groups WHERE ready_at IS NOT NULL AND completed IS NOT NULL
        ORDER BY ready_at DESC LIMIT 20"""
    lags = [lag for (lag,) in tx.all(sql)]
    return StoreCounts(kept, count_groups(tx), batches, lags, int(get_meta(tx, STALE_RUNS) or 0))


def counts(found: StoreCounts, missing: dict[str, int], orphans: int, now: float) -> JsonObject:
    """What ``Statistics.counts`` answers. ``orphans``: episodes with rewards and no calls."""
    kept = found.kept
    return {
        "groups": found.groups.states(),
        "batches": {state: batch.n for state, batch in found.batches.items()},
        "episodes": totals(
            ("failed" if (state, apart) == ("done", "failed") else state, tally.n)
            for (state, split, apart), tally in kept.episodes.items()
            if split != SIBLING_SPLIT
        ),
        "siblings": count_siblings(kept),
        "rewards": {source: tally.n for (source,), tally in kept.rewards.items()},
        "calls": int(sum(tally.x for (_, split, _), tally in kept.episodes.items() if split != SIBLING_SPLIT)),
        "untrainable": untrainable_calls(kept),
        "missing": missing,
        "orphans": orphans,
        "lost": found.groups.lost(),
        "stale_runs": found.stale_runs,
        "judging": judging_counts(found, now),
    }


def judging_counts(found: StoreCounts, now: float) -> dict[str, float]:
    """Groups that wait for rewards: how many, the oldest one's seconds, and the latest ones' (``lag``)."""
    waiting = [row for row in found.groups.of("waiting_reward") if not row.parked]
    oldest = min((row.completed for row in waiting if row.completed is not None), default=None)
    age = max(0.0, now - oldest) if oldest is not None else 0.0
    lag = sum(found.lags) / len(found.lags) if found.lags else 0.0
    return {"waiting": sum(row.n for row in waiting), "oldest": age, "lag": lag}


def untrainable_calls(kept: Tallied) -> dict[str, int]:
    """Reason → calls of trained models that cannot be trained on, the most frequent first."""
    found = totals((reason, tally.n) for (_, reason), tally in kept.untrainable.items())
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def count_siblings(kept: Tallied) -> int:
    """Further samples of agents' steps."""
    return sum(t.n for (state, split, _), t in kept.episodes.items() if (state, split) == ("done", SIBLING_SPLIT))


def waiting_groups(tx: Tx) -> list[str]:
    """Complete groups in which an episode lacks its reward."""
    return [group for (group,) in tx.all("SELECT id FROM t_groups WHERE state = 'waiting_reward'")]


def missing_rewards(tx: Tx, rules: Rules, groups: list[str]) -> dict[str, int]:
    """Weighted reward name → episodes of these groups that wait for it."""
    found = {}
    for name in rules.weights if groups else ():
        sql = f"""SELECT count(*) FROM t_episodes e WHERE e.reward IS NULL AND {OWN_RUNS} AND e.grp {IN}
            AND NOT EXISTS (SELECT 1 FROM t_rewards r WHERE r.eid = e.eid AND r.name = ?)"""
        if count := tx.all(sql, (groups, name))[0][0]:
            found[name] = count
    return found


def waiting_episodes(tx: Tx, groups: list[str]) -> int:
    """Episodes of these groups, with a reward or without."""
    sql = f"SELECT count(*) FROM t_episodes e WHERE {OWN_RUNS} AND e.grp {IN}"
    return int(tx.all(sql, (groups,))[0][0]) if groups else 0


def unweighted_rewards(tx: Tx, rules: Rules, groups: list[str]) -> dict[str, int]:
    """Name without a weight → episodes of these groups that have such a reward and wait for another name."""
    if not groups:
        return {}
    sql = f"""SELECT r.name, count(DISTINCT r.eid) FROM t_rewards r JOIN t_episodes e ON e.eid = r.eid
        WHERE e.reward IS NULL AND {OWN_RUNS} AND e.grp {IN} GROUP BY 1 ORDER BY 2 DESC, 1"""
    return {name: int(count) for name, count in tx.all(sql, (groups,)) if name not in rules.weights}


LEFT_UNREWARDED_KEY = "unrewarded runs"
"""In ``t_meta``."""


def left_unrewarded(tx: Tx) -> int:
    """Runs that have left a group because they never got a reward."""
    return int(get_meta(tx, LEFT_UNREWARDED_KEY) or 0)
