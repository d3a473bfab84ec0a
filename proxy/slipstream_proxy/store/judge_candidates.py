"""Which complete groups the judge may take: the newest first, none that has its scores, none that is lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from slipstream_proxy.store.driver import IN, Driver, Tx
from slipstream_proxy.store.freshness import JUDGE, STALE, freshness_of
from slipstream_proxy.store.groups import GroupTable
from slipstream_proxy.store.values import Rules

CHUNK = 256
"""Groups that are looked at together."""
COMPLETE = "'waiting_reward', 'ready', 'eval', 'leased'"
FREE = "NOT parked AND (retry_at IS NULL OR retry_at <= ?) AND (judge_lease IS NULL OR judge_until < ?)"


def lacks_of(eid: str) -> str:
    """Parameters: names, how many."""
    return f"""(SELECT count(DISTINCT r.name) FROM t_rewards r
        WHERE r.eid = {eid} AND r.call IS NULL AND r.name {IN}) < ?"""


def batched(items: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lists of at most ``size`` items."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


class JudgeCandidates:
    def __init__(self, db: Driver, rules: Rules, groups: GroupTable) -> None:
        self.db = db
        self.rules = rules
        self.groups = groups
        self._judged: dict[tuple[str, ...], set[str]] = {}
        """Names → complete groups that have them all."""

    def newest(self, tx: Tx, kinds: str, names: Sequence[str], limit: int, now: float) -> list[str]:
        """The newest complete groups, at most ``limit``, in which an episode lacks a name."""
        sql = f"SELECT id, model FROM t_groups WHERE kind IN ({kinds}) AND state IN ({COMPLETE}) AND {FREE}"
        judged = self._judged.setdefault(tuple(names), set())
        newest = "ORDER BY completed DESC, id"
        rows = tx.all(f"{sql} {newest}", (now, now))
        waiting = {group: model for group, model in rows if group not in judged}
        judged.intersection_update(group for group, _ in rows)
        chosen: list[str] = []
        for part in batched(waiting, CHUNK):
            lacking = self._lacking(tx, part, names)
            # Rewards are never taken back: what has them all is not looked at again.
            judged.update(g for g in part if g not in lacking)
            chosen += self._worthwhile(tx, {g: waiting[g] for g in part if lacking.get(g)})
            if len(chosen) >= limit:
                break
        if not self.db.lock_rows:
            return chosen[:limit]
        locked = tx.all(f"{sql} AND id {IN} {newest} LIMIT ?{self.db.lock_rows}", (now, now, chosen, limit))
        return [group for group, _ in locked]

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
