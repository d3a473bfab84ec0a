"""Counters that are kept, and small values that the store keeps about itself.

A transaction counts the episodes that it touches before and after its changes, and appends the difference. So a kill
leaves counters and rows as they agree. The whole store is counted by one query (``COUNTS_SQL``), the few episodes of a
transaction from their rows (``count_rows``): to plan that query takes longer than to read them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import fsum
from typing import NamedTuple, Protocol

from slipstream.contract import Split, is_sibling
from slipstream_proxy.store.tables.driver import IN, Driver, Tx
from slipstream_proxy.store.tables.rows import EpisodeRow

STALE_RUNS = "stale runs"
"""How many runs were leased as baseline alone."""


def get_meta(tx: Tx, name: str) -> str | None:
    found = tx.all("SELECT value FROM t_meta WHERE name = ?", (name,))
    return found[0][0] if found else None


def set_meta(tx: Tx, name: str, value: str) -> None:
    if not tx.run("UPDATE t_meta SET value = ? WHERE name = ?", (value, name)):
        tx.run("INSERT INTO t_meta VALUES (?, ?)", (name, value))


LABEL_SEPARATOR = "\x1f"
"""Between the parts of a label; in SQL ``chr(31)``."""
MOST_ROWS = 256
"""Rows of ``t_tallies`` that a sweep leaves as they are; more are summed up."""
TALLIES_KEY = "tallies"
"""In ``t_meta``: the counters have been begun."""

SQUARE_EXPRESSION = "CASE WHEN abs({0}) < 1e-100 THEN 0 ELSE {0} * {0} END"
"""PostgreSQL fails at a product that is too small for a float."""

OWN_RUNS = "split <> 'sibling'"
"""Of episodes: agents' runs. The others are steps that were sampled once more, and count by themselves."""


def own_runs(split: str | None) -> list[str]:
    """The condition for agents' runs, unless a split is asked for by its name."""
    return [] if split else [OWN_RUNS]


EPISODES_SQL = """SELECT 'episodes', state || chr(31) || split || chr(31) || CASE WHEN error IS NOT NULL THEN 'failed'
    WHEN state = 'done' AND NOT grouped AND trained_calls > 0 THEN 'alone' ELSE '' END, count(*),
    coalesce(sum(calls), 0), coalesce(sum(trained_calls), 0), NULL, NULL FROM t_episodes WHERE {which} GROUP BY 2"""
SUCCESS_SQL = f"""SELECT 'success', model || chr(31) || adapter || chr(31) || split || chr(31) || arm, count(*),
    sum(reward), sum({SQUARE_EXPRESSION.format("reward")}), min(started), max(started) FROM t_episodes
    WHERE reward IS NOT NULL AND state <> 'deleted' AND adapter IS NOT NULL AND {OWN_RUNS} AND {{which}} GROUP BY 2"""
REWARDS_SQL = """SELECT 'rewards', source, count(*), 0, 0, NULL, NULL FROM t_rewards
    WHERE eid NOT LIKE '%~0~%' AND {which} GROUP BY 2"""
SOURCES_SQL = f"""SELECT 'sources', r.source || chr(31) || e.adapter || chr(31) || e.split, count(*), sum(r.value),
    sum({SQUARE_EXPRESSION.format("r.value")}), NULL, NULL
    FROM (SELECT DISTINCT ON (eid, call, name, source) eid, source, value
    FROM t_rewards WHERE {{which}} ORDER BY eid, call, name, source, seq DESC) r
    JOIN (SELECT eid, adapter, split FROM t_episodes WHERE {{which}} AND state <> 'deleted' AND adapter IS NOT NULL
    AND error IS NULL AND {OWN_RUNS}) e
    ON e.eid = r.eid GROUP BY 2"""
COUNTS_SQL = f"{EPISODES_SQL} UNION ALL {SUCCESS_SQL} UNION ALL {REWARDS_SQL} UNION ALL {SOURCES_SQL}"
UNTRAINABLE_SQL = """SELECT coalesce(reason, 'unknown'), count(*) FROM {table}
    WHERE NOT trainable AND trained IS NOT NULL AND {which} GROUP BY 1"""


EPISODE_ROWS = f"""SELECT eid, state, split, grouped, calls, trained_calls, model, adapter, arm, reward, started, error
    FROM t_episodes WHERE eid {IN}"""
REWARD_ROWS = f"""SELECT DISTINCT ON (eid, call, name, source) eid, call, name, source, value, seq,
    count(*) OVER (PARTITION BY eid, call, name, source) FROM t_rewards WHERE eid {IN}
    ORDER BY eid, call, name, source, seq DESC"""
"""A run may have thousands of small rewards: the latest of each name comes here, with how many there are."""


class CountedEpisode(NamedTuple):
    eid: str
    state: str
    split: str
    grouped: bool
    calls: int | None
    trained_calls: int | None
    model: str
    adapter: str | None
    arm: str
    reward: float | None
    started: float
    error: str | None = None


class CountedReward(NamedTuple):
    eid: str
    call: str | None
    name: str
    source: str
    value: float
    seq: int
    n: int = 1
    """Rows of this call, name and source, of which this is the latest."""


def newest_rewards(tx: Tx, eids: Collection[str]) -> list[CountedReward]:
    return [CountedReward(*row) for row in tx.all(REWARD_ROWS, (list(eids),))]


class CallTables(Protocol):
    def tables(self, tx: Tx) -> list[str]:
        """Those of all days with calls."""


class KeptCount(NamedTuple):
    """``n``: how many. ``x``, ``y``: of episodes their calls and trained calls, of rewards their sum and the sum of
    squares. ``low``, ``high``: when the first and the last of these episodes began, deleted ones too.
    """

    n: int
    x: float = 0.0
    y: float = 0.0
    low: float | None = None
    high: float | None = None

    @property
    def mean(self) -> float:
        return self.x / self.n

    @property
    def spread(self) -> float:
        """Standard deviation of the sample; 0 for one."""
        if self.n < 2:
            return 0.0
        return float(max(0.0, (self.y - self.x * self.x / self.n) / (self.n - 1)) ** 0.5)


Tallies = dict[tuple[str, str], KeptCount]
"""By (name, label)."""


class Tallied(NamedTuple):
    """What is kept, by the parts of its label."""

    episodes: dict[tuple[str, ...], KeptCount]
    """By state, split, and ``failed`` for one in which the model never said anything, ``alone`` for one that no group
    takes because it has no task."""
    success: dict[tuple[str, ...], KeptCount]
    """By model, adapter, split, arm."""
    rewards: dict[tuple[str, ...], KeptCount]
    """By source."""
    sources: dict[tuple[str, ...], KeptCount]
    """The latest rewards of each name, by source, adapter, split."""
    untrainable: dict[tuple[str, ...], KeptCount]
    """By day's table and reason."""


def drop_tallies(tx: Tx, table: str) -> None:
    """A day's calls are dropped."""
    sql = "DELETE FROM t_tallies WHERE name = 'untrainable' AND split_part(label, chr(31), 1) = ?"
    tx.run(sql, (table,))


class TallyTable:
    def __init__(self, db: Driver, days: CallTables) -> None:
        self.db = db
        self.days = days

    def begin(self) -> None:
        """Count once what is there, in a store that comes from an older release."""
        with self.db.write() as tx:
            if get_meta(tx, TALLIES_KEY) is None:
                self.recount(tx)
                set_meta(tx, TALLIES_KEY, "1")

    def recount(self, tx: Tx) -> None:
        """Count the whole store again."""
        tx.run("DELETE FROM t_tallies")
        self.insert(tx, self.counted(tx))

    def counted(self, tx: Tx) -> Tallies:
        """What the tables hold, without what is kept."""
        rows = tx.all(COUNTS_SQL.format(which="TRUE"))
        found = {(name, label): KeptCount(int(n), *rest) for name, label, n, *rest in rows}
        for table in self.days.tables(tx):
            found |= self._untrainable(tx, table, None)
        return found

    def counted_of(self, tx: Tx, eids: Collection[str]) -> Tallies:
        """The same of these episodes, without their calls."""
        if not eids:
            return {}
        episodes = map(CountedEpisode._make, tx.all(EPISODE_ROWS, (list(eids),)))
        return count_rows(list(episodes), newest_rewards(tx, eids))

    def all(self, tx: Tx) -> Tallied:
        """What is kept."""
        made = Tallied({}, {}, {}, {}, {})
        for (name, label), tally in self._sums(tx).items():
            getattr(made, name)[tuple(label.split(LABEL_SEPARATOR))] = tally
        return made

    @contextmanager
    def around(self, tx: Tx, eids: Collection[str]) -> Iterator[None]:
        """The block changes no count but these episodes' and their rewards'."""
        before = self.counted_of(tx, eids)
        yield
        self.insert(tx, difference(before, self.counted_of(tx, eids)))

    @contextmanager
    def around_calls(self, tx: Tx, tables: Iterable[str], eids: Collection[str]) -> Iterator[None]:
        """The block changes calls of these episodes in these tables."""
        tables = list(tables) if eids else []

        def counted() -> Tallies:
            return {key: tally for table in tables for key, tally in self._untrainable(tx, table, eids).items()}

        before = counted()
        yield
        self.insert(tx, difference(before, counted()))

    def compact(self, tx: Tx, most: int = MOST_ROWS) -> None:
        """Sum up what transactions have appended, if it is more than that."""
        if tx.all("SELECT count(*) FROM t_tallies")[0][0] > most:
            sums = self._sums(tx)
            tx.run("DELETE FROM t_tallies")
            self.insert(tx, sums)

    def _untrainable(self, tx: Tx, table: str, eids: Collection[str] | None) -> Tallies:
        which, params = ("TRUE", []) if eids is None else (f"eid {IN}", [list(eids)])
        rows = tx.all(UNTRAINABLE_SQL.format(table=table, which=which), params)
        return {("untrainable", table + LABEL_SEPARATOR + reason): KeptCount(int(n)) for reason, n in rows}

    def _sums(self, tx: Tx) -> Tallies:
        sql = """SELECT name, label, sum(n), sum(x), sum(y), min(low), max(high) FROM t_tallies GROUP BY name, label
            HAVING sum(n) <> 0"""
        return {(name, label): KeptCount(int(n), *rest) for name, label, n, *rest in tx.all(sql)}

    def insert(self, tx: Tx, tallies: Tallies) -> None:
        """Add these to what is kept."""
        tx.insert("t_tallies", [(*key, *tally) for key, tally in tallies.items()])


def count_untrainable(table: str, reasons: Iterable[str | None]) -> Tallies:
    """Of calls in a day's table that cannot be trained on, by their reasons."""
    found: dict[str, int] = defaultdict(int)
    for reason in reasons:
        found[reason or "unknown"] += 1
    return {("untrainable", table + LABEL_SEPARATOR + reason): KeptCount(n) for reason, n in found.items()}


def count_rows(episodes: Iterable[CountedEpisode | EpisodeRow], rewards: Iterable[CountedReward]) -> Tallies:
    """What ``COUNTS_SQL`` says of these rows. The sums do not depend on the rows' order."""
    found: dict[tuple[str, str], list[tuple[float, float, float | None]]] = defaultdict(list)
    """(x, y, when it began) of each that counts."""
    for ep in episodes:
        apart = "alone" if ep.state == "done" and not ep.grouped and (ep.trained_calls or 0) > 0 else ""
        label = LABEL_SEPARATOR.join((ep.state, ep.split, "failed" if ep.error is not None else apart))
        found["episodes", label].append((ep.calls or 0, ep.trained_calls or 0, None))
        if ep.reward is not None and ep.adapter is not None and ep.state != "deleted" and ep.split != Split.SIBLING:
            label = LABEL_SEPARATOR.join((ep.model, ep.adapter, ep.split, ep.arm))
            found["success", label].append((ep.reward, square(ep.reward), ep.started))
    latest: dict[tuple[str, str | None, str, str], CountedReward] = {}
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for reward in rewards:
        if is_sibling(reward.eid):
            continue
        counts["rewards", reward.source] += reward.n
        which = reward[:4]
        if which not in latest or latest[which].seq < reward.seq:
            latest[which] = reward
    served = {ep.eid: ep for ep in episodes if ep.state != "deleted" and ep.adapter is not None and ep.error is None}
    for reward in latest.values():
        if (by := served.get(reward.eid)) is not None:
            label = LABEL_SEPARATOR.join((reward.source, str(by.adapter), by.split))
            found["sources", label].append((reward.value, square(reward.value), None))
    kept = {key: KeptCount(n) for key, n in counts.items()}
    return {key: summed(parts) for key, parts in found.items()} | kept


def square(value: float) -> float:
    """As ``SQUARE_EXPRESSION``."""
    return 0.0 if abs(value) < 1e-100 else value * value


def summed(parts: Sequence[tuple[float, float, float | None]]) -> KeptCount:
    xs, ys, began = zip(*parts, strict=True)
    times = [at for at in began if at is not None]
    return KeptCount(len(parts), fsum(xs), fsum(ys), min(times, default=None), max(times, default=None))


def difference(before: Tallies, after: Tallies) -> Tallies:
    """What is to be added to ``before``, to have ``after``."""
    found: Tallies = {}
    for key in {**before, **after}:
        old, new = before.get(key, KeptCount(0)), after.get(key, KeptCount(0))
        if (old.n, old.x, old.y) != (new.n, new.x, new.y):
            found[key] = KeptCount(new.n - old.n, new.x - old.x, new.y - old.y, new.low, new.high)
    return found
