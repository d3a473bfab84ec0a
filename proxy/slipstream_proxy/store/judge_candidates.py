"""Which complete groups the judge may take: the newest first, none that has its scores, none that is lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from slipstream_proxy.store.driver import IN, Driver, Tx
from slipstream_proxy.store.freshness import JUDGE, STALE, freshness_of
from slipstream_proxy.store.groups import GroupTable
from slipstream_proxy.store.values import Rules

T = TypeVar("T")
CHUNK = 256
"""Groups that are looked at together."""
MANY = 4096
FEW = 512
"""Groups that a query names one by one."""
COMPLETE = "'waiting_reward', 'ready', 'eval', 'leased'"
FREE = "NOT parked AND (retry_at IS NULL OR retry_at <= ?) AND (judge_lease IS NULL OR judge_until < ?)"


def lacks_of(eid: str) -> str:
    """Parameters: names, how many."""
    return f"""(SELECT count(DISTINCT r.name) FROM t_rewards r
        WHERE r.eid = {eid} AND r.call IS NULL AND r.name {IN}) < ?"""


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of at most ``size`` items."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


class Backlog(NamedTuple):
    """Complete groups that lack a name, when the oldest and the newest were complete, and how many are parked."""

    groups: int
    oldest: float | None
    newest: float | None
    parked: int


class JudgeCandidates:
    def __init__(self, db: Driver, rules: Rules, groups: GroupTable) -> None:
        self.db = db
        self.rules = rules
        self.groups = groups
        self._judged: dict[tuple[str, ...], set[str]] = {}
        """Names → complete groups that have them all, where proxies share a store."""
        self._pending = groups.unjudged
        """Where they don't share one."""
        self._most: dict[tuple[str, ...], int] = {}
        """Names → how many of these there may be before those that are settled are left out."""

    def newest(self, tx: Tx, kinds: str, names: Sequence[str], limit: int, now: float) -> list[str]:
        """The newest complete groups, at most ``limit``, in which an episode lacks a name."""
        if len(self._pending.get(tuple(names), ())) > self._most.get(tuple(names), MANY):
            self._prune(tx, names)
        possible = self._possible(tx, names)
        if not possible:
            return []
        sql = f"SELECT id, model FROM t_groups WHERE kind IN ({kinds}) AND state IN ({COMPLETE}) AND {FREE}"
        newest = "ORDER BY completed DESC, id"
        which, more = (f"AND id {IN}", [list(possible)]) if len(possible) <= FEW else ("", [])
        rows = tx.all(f"{sql} {which} {newest}", (now, now, *more))
        waiting = {group: model for group, model in rows if group in possible}
        chosen: list[str] = []
        for part in batched(waiting, CHUNK):
            lacking = self._lacking(tx, part, names)
            self._settle(names, [g for g in part if g not in lacking])
            chosen += self._worthwhile(tx, {g: waiting[g] for g in part if lacking.get(g)})
            if len(chosen) >= limit:
                break
        if not self.db.lock_rows:
            return chosen[:limit]
        locked = tx.all(f"{sql} AND id {IN} {newest} LIMIT ?{self.db.lock_rows}", (now, now, chosen, limit))
        return [group for group, _ in locked]

    def backlog(self, kinds: str, names: Sequence[str]) -> Backlog:
        """Complete groups in which an episode lacks a name."""
        if not self.db.shared and tuple(names) not in self._pending:
            with self.db.write() as tx:
                self._possible(tx, names)
        with self.db.read() as tx:
            possible = list(self._possible(tx, names))
            sql = f"SELECT DISTINCT e.grp FROM t_episodes e WHERE e.grp {IN} AND {lacks_of('e.eid')}"
            lacking = [g for (g,) in tx.all(sql, (possible, list(names), len(names)))] if possible else []
            wanted = f"FILTER (WHERE kind IN ({kinds}) AND state IN ({COMPLETE}) AND NOT parked)"
            # rows by nothing but their id, so that an index finds a few
            sql = f"""SELECT count(*) {wanted}, min(completed) {wanted}, max(completed) {wanted}
                FROM t_groups WHERE id {IN}"""
            found = tx.all(sql, (lacking,)) if lacking else [(0, None, None)]
            ((parked,),) = tx.all("SELECT count(*) FROM t_groups WHERE parked AND state <> 'dropped'")
        ((groups, oldest, newest),) = found
        return Backlog(groups, oldest, newest, parked)

    def _possible(self, tx: Tx, names: Sequence[str]) -> Collection[str]:
        """Groups that may lack a name. The first time: in a transaction beside which nobody writes."""
        pending = self._pending.get(tuple(names))
        if pending is not None:
            return pending
        complete = self._complete(tx)
        if self.db.shared:
            judged = self._judged.setdefault(tuple(names), set())
            judged &= complete
            return complete - judged
        self._pending[tuple(names)] = complete
        return complete

    def _complete(self, tx: Tx) -> set[str]:
        return {g for (g,) in tx.all(f"SELECT id FROM t_groups WHERE state IN ({COMPLETE})")}

    def _prune(self, tx: Tx, names: Sequence[str]) -> None:
        """Leave out what was trained on or lost meanwhile."""
        pending = self._pending[tuple(names)]
        pending &= self._complete(tx)
        self._most[tuple(names)] = 2 * len(pending) + MANY

    def _settle(self, names: Sequence[str], judged: Collection[str]) -> None:
        """These have all names. Rewards are never taken back, so they are not looked at again."""
        if self.db.shared:
            self._judged[tuple(names)].update(judged)
        else:
            self._pending[tuple(names)].difference_update(judged)

    def _lacking(self, tx: Tx, groups: Sequence[str], names: Sequence[str]) -> dict[str, bool]:
        """Groups in which an episode lacks a name. False: another one is open, so that the judge waits for it."""
        sql = f"SELECT e.grp, e.state, {lacks_of('e.eid')} FROM t_episodes e WHERE e.grp {IN}"
        found: dict[str, bool] = {}
        still_open = set()
        for group, state, lacks in tx.all(sql, (list(names), len(names), list(groups))):
            if state == "open":
                still_open.add(group)
            if lacks or state == "open":
                found[group] = True
        return {group: group not in still_open for group in found}

    def _worthwhile(self, tx: Tx, found: dict[str, str]) -> list[str]:
        """The groups that a trainer may still use. The others are settled here, each with its cause."""
        fresh = {model: freshness_of(tx, model, self.rules.max_staleness) for model in set(found.values())}
        sql = f"SELECT id FROM t_groups WHERE split = 'train' AND state IN ('waiting_reward', 'ready') AND id {IN}"
        training = [g for (g,) in tx.all(sql, (list(found),))] if found else []
        members = self.groups.members(tx, training)
        losses = {
            g: loss for g in training if (loss := fresh[found[g]].loss(members[g], JUDGE)) and loss.state == STALE
        }
        self.groups.lose(tx, losses)
        return [g for g in found if g not in losses]
