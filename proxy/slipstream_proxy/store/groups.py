"""Which episodes are compared: groups form as episodes end, and are ready for the trainer when each has its reward."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import NamedTuple

from slipstream_proxy.store.driver import IN, Driver, Tx
from slipstream_proxy.store.freshness import DELETED, Loss
from slipstream_proxy.store.likeness import RecentRuns, likeness_of
from slipstream_proxy.store.lineage import trained_groups
from slipstream_proxy.store.rows import EPISODE_COLUMNS, EpisodeRow, GroupRow
from slipstream_proxy.store.values import Rules

UNTRAINED = "'forming', 'waiting_reward', 'ready', 'eval'"
"""States of a group that no trainer has."""


class Line(NamedTuple):
    """The line of groups that an episode joins. ``bucket`` is its stable name."""

    bucket: str
    kind: str


def line_of(ep: EpisodeRow, *, recurs: bool = False) -> Line:
    """``recurs``: an untagged episode whose first message keeps coming back counts as a run of one task."""
    if ep.grouped:
        kind, parts = "task", ("task", ep.key, ep.model, ep.task or "", ep.split)
    elif recurs:
        kind, parts = "task", ("same", ep.key, ep.model, ep.alike, ep.split)
    else:
        kind, parts = "like", ("like", ep.key, ep.model, likeness_of(ep.alike), ep.split)
    return Line(blake2b("\0".join(parts).encode(), digest_size=8).hexdigest(), kind)


def group_of(ep: EpisodeRow, line: Line, ordinal: int, state: str, created: float) -> GroupRow:
    """A group of a line, without members yet."""
    return GroupRow(
        id=f"g{line.bucket}-{ordinal}",
        bucket=line.bucket,
        ordinal=ordinal,
        kind=line.kind,
        key=ep.key,
        task=ep.task if ep.grouped else None,
        model=ep.model,
        split=ep.split,
        state=state,
        n=0,
        created=created,
    )


def window_of(ep: EpisodeRow, now: float) -> GroupRow:
    """The window around a single episode, which only the judge sees."""
    return GroupRow(
        id=f"w-{ep.eid.replace('/', '-')}"[:160],
        bucket="",
        ordinal=0,
        kind="window",
        key=ep.key,
        task=None,
        model=ep.model,
        split=ep.split,
        state="window",
        n=1,
        created=now,
        completed=ep.ended,
        single=ep.eid,
    )


class _LastGroup(NamedTuple):
    """A bucket's highest ordinal, and its unfinished group with its size (None: there is none)."""

    ordinal: int
    forming: str | None
    n: int | None


class GroupTable:
    def __init__(self, db: Driver, rules: Rules) -> None:
        self.db = db
        self.rules = rules
        self.recent = RecentRuns()
        self.unjudged: dict[tuple[str, ...], set[str]] = {}
        """Reward names that a judge asked for → groups that may lack one. A complete one that is not there has them."""

    def join(self, tx: Tx, ended: Collection[EpisodeRow], now: float) -> list[str]:
        """Episodes that have just ended join the forming group of their bucket; a full one is complete.

        → Groups that became complete.
        """
        lines: dict[Line, list[EpisodeRow]] = defaultdict(list)
        for ep in ended:
            if ep.grp is None and ep.trained_calls and (ep.grouped or self.rules.ungrouped):
                lines[line_of(ep, recurs=not ep.grouped and self.recent.recurs(tx, ep))].append(ep)
        if not lines:
            return []
        last = self._last(tx, [line.bucket for line in lines])
        new: dict[str, GroupRow] = {}
        sizes: dict[str, int] = {}
        for line, eps in lines.items():
            ordinal, group, size = last.get(line.bucket, _LastGroup(-1, None, 0))
            n = size or 0
            for ep in eps:
                if group is None:
                    ordinal, n = ordinal + 1, 0
                    row = group_of(ep, line, ordinal, "forming", ep.ended or now)
                    group = row.id
                    new[group] = row
                ep.grp = group
                n = sizes[group] = n + 1
                if n >= self.rules.group_size:
                    group = None
        tx.insert("t_groups", [row._replace(n=sizes[group]) for group, row in new.items()])
        tx.update("t_groups", ("id",), ("n",), [item for item in sizes.items() if item[0] not in new])
        return [group for group, n in sizes.items() if n >= self.rules.group_size]

    def changed(self, groups: Collection[str]) -> None:
        """They may have become complete, or their episodes may lack other rewards than before."""
        for lacking in self.unjudged.values():
            lacking.update(groups)

    def write_members(self, tx: Tx, eps: Collection[EpisodeRow]) -> None:
        """Write down which groups these episodes have joined. Apart from their other columns: an index has this one."""
        tx.update("t_episodes", ("eid",), ("grp",), [(ep.eid, ep.grp) for ep in eps if ep.grp is not None])

    def _last(self, tx: Tx, buckets: Collection[str]) -> dict[str, _LastGroup]:
        # There is at most one forming group of a bucket: the last one.
        sql = f"""SELECT bucket, max(ordinal), max(CASE WHEN state = 'forming' THEN id END),
            max(CASE WHEN state = 'forming' THEN n END) FROM t_groups WHERE bucket {IN} GROUP BY bucket"""
        return {bucket: _LastGroup(*rest) for bucket, *rest in tx.all(sql, (list(buckets),))}

    def complete(self, tx: Tx, groups: Collection[str], now: float) -> None:
        """Forming groups are complete. Groups of split ``eval`` are for the judge alone."""
        if groups:
            self.changed(groups)
            sql = f"""UPDATE t_groups SET state = CASE WHEN split = 'train' THEN 'waiting_reward' ELSE 'eval' END,
                completed = ?
                WHERE state = 'forming' AND id {IN}"""
            tx.run(sql, (now, list(groups)))

    def next_aged(self, tx: Tx) -> float:
        """When the first of the forming groups has waited for ``groups.max_age``; infinite: there is none."""
        ((first,),) = tx.all("SELECT min(created) FROM t_groups WHERE state = 'forming' AND n >= 2")
        return math.inf if first is None else float(first) + self.rules.group_max_age

    def aged(self, tx: Tx, now: float) -> list[str]:
        """Forming groups of at least two that have waited longer than ``groups.max_age``."""
        sql = "SELECT id FROM t_groups WHERE state = 'forming' AND n >= 2 AND created < ?"
        return [group for (group,) in tx.all(sql, (now - self.rules.group_max_age,))]

    def mark_ready(self, tx: Tx, groups: Collection[str], now: float) -> None:
        """Mark those of these groups as ready that are complete, with every episode done and rewarded."""
        self.changed(groups)
        waiting = f"SELECT 1 FROM t_groups WHERE state = 'waiting_reward' AND id {IN} LIMIT 1"
        if groups and tx.all(waiting, (list(groups),)):
            sql = f"""UPDATE t_groups SET state = 'ready', ready_at = ? WHERE state = 'waiting_reward' AND n > 0
                AND id {IN}
                AND id NOT IN (SELECT grp FROM t_episodes WHERE (reward IS NULL OR state = 'open') AND grp {IN})"""
            if not tx.run(sql, (now, list(groups), list(groups))):
                return
            # A group that was trained on before the store was rebuilt must not train again.
            trained = trained_groups(tx, groups)
            if trained:
                tx.run(f"UPDATE t_groups SET state = 'trained' WHERE state = 'ready' AND id {IN}", (trained,))

    def hold(self, tx: Tx, group: str) -> bool:
        """An episode of the group goes on, and the group waits for it. False: it is too late for that."""
        # First the update: it waits for a trainer that is leasing the group just now.
        tx.run("UPDATE t_groups SET state = 'waiting_reward' WHERE id = ? AND state = 'ready'", (group,))
        return bool(tx.all(f"SELECT 1 FROM t_groups WHERE id = ? AND state IN ({UNTRAINED})", (group,)))

    def lose(self, tx: Tx, losses: Mapping[str, Loss]) -> None:
        """Groups that no trainer will have."""
        for loss in set(losses.values()):
            groups = [group for group, found in losses.items() if found == loss]
            tx.run(f"UPDATE t_groups SET state = ?, cause = ? WHERE id {IN}", (loss.state, loss.cause, groups))

    def leave(self, tx: Tx, eps: Collection[EpisodeRow]) -> None:
        """Episodes that are deleted leave their groups; a group of none is dropped."""
        leaving = Counter(ep.grp for ep in eps if ep.grp)
        groups = list(leaving)
        if groups:
            sizes = tx.all(f"SELECT id, n FROM t_groups WHERE id {IN}", (groups,))
            tx.update("t_groups", ("id",), ("n",), [(group, n - leaving[group]) for group, n in sizes])
            tx.run(f"UPDATE t_groups SET state = 'dropped', cause = ? WHERE n <= 0 AND id {IN}", (DELETED, groups))

    def members(self, tx: Tx, groups: Collection[str]) -> dict[str, list[EpisodeRow]]:
        """Each group's episodes, oldest first."""
        found: dict[str, list[EpisodeRow]] = defaultdict(list)
        if groups:
            sql = f"SELECT {EPISODE_COLUMNS} FROM t_episodes WHERE grp {IN} ORDER BY started, eid"
            for row in tx.all(sql, (list(groups),)):
                ep = EpisodeRow(*row)
                found[ep.grp or ""].append(ep)
        return found
