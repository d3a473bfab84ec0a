"""Which episodes are compared: groups form as episodes end, and are ready for the trainer when each has its reward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from hashlib import blake2b

from slipstream_proxy.store.base import IN
from slipstream_proxy.store.driver import Row, Tx
from slipstream_proxy.store.rows import Ep
from slipstream_proxy.store.schema import TABLES
from slipstream_proxy.store.scoring import Scoring

GROUP_COLUMNS = tuple(TABLES["t_groups"])


def bucket_of(ep: Ep) -> str:
    """Stable name of the line of groups that an episode joins."""
    what = (
        ("task", ep.key, ep.model, ep.task or "", ep.split)
        if ep.grouped
        else ("like", ep.key, ep.model, ep.alike, ep.split)
    )
    return blake2b("\0".join(what).encode(), digest_size=8).hexdigest()


def group_row(
    group: str, bucket: str, ordinal: int, kind: str, ep: Ep, state: str, created: float, *, single: str | None = None
) -> Row:
    values = {
        "id": group, "bucket": bucket, "ordinal": ordinal, "kind": kind, "key": ep.key, "task": ep.task if kind == "task" else None,
        "model": ep.model, "split": ep.split, "state": state, "n": 0, "created": created, "attempts": 0, "parked": False, "retry_at": 0.0,
        "single": single,
    }  # fmt: skip
    return tuple(values.get(c) for c in GROUP_COLUMNS)


class Groups(Scoring):
    def _join(self, tx: Tx, ended: Collection[Ep], now: float) -> list[str]:
        """Episodes that have just ended join the forming group of their bucket; a full one is complete. → Groups that became complete."""
        lines: dict[str, list[Ep]] = defaultdict(list)
        for ep in ended:
            if ep.grp is None and ep.trained_calls and (ep.grouped or self.rules.ungrouped):
                lines[bucket_of(ep)].append(ep)
        if not lines:
            return []
        # There is at most one forming group of a bucket: the last one.
        sql = f"""SELECT bucket, max(ordinal), max(CASE WHEN state = 'forming' THEN id END), max(CASE WHEN state = 'forming' THEN n END)
            FROM t_groups WHERE bucket {IN} GROUP BY bucket"""
        last = {bucket: (ordinal, group, n) for bucket, ordinal, group, n in tx.all(sql, (list(lines),))}
        new: dict[str, Row] = {}
        sizes: dict[str, int] = {}
        for bucket, eps in lines.items():
            ordinal, group, n = last.get(bucket, (-1, None, 0))
            for ep in eps:
                if group is None:
                    ordinal, n = ordinal + 1, 0
                    group = f"g{bucket}-{ordinal}"
                    new[group] = group_row(
                        group, bucket, ordinal, "task" if ep.grouped else "like", ep, "forming", ep.ended or now
                    )
                ep.grp = group
                n = sizes[group] = n + 1
                if n >= self.rules.group_size:
                    group = None
        at = GROUP_COLUMNS.index("n")
        tx.insert("t_groups", [(*row[:at], sizes[group], *row[at + 1 :]) for group, row in new.items()])
        tx.update("t_groups", ("id",), ("n",), [item for item in sizes.items() if item[0] not in new])
        return [group for group, n in sizes.items() if n >= self.rules.group_size]

    def _complete(self, tx: Tx, groups: Collection[str], now: float) -> None:
        """Forming groups are complete. Groups of split ``eval`` are for the judge alone."""
        if groups:
            sql = f"""UPDATE t_groups SET state = CASE WHEN split = 'train' THEN 'waiting_reward' ELSE 'eval' END, completed = ?
                WHERE state = 'forming' AND id {IN}"""
            tx.run(sql, (now, list(groups)))

    def _ready(self, tx: Tx, groups: Collection[str], now: float) -> None:
        """Of these groups the complete ones whose every episode has its reward are ready for the trainer."""
        if groups and tx.all(
            f"SELECT 1 FROM t_groups WHERE state = 'waiting_reward' AND id {IN} LIMIT 1", (list(groups),)
        ):
            sql = f"""UPDATE t_groups SET state = 'ready', ready_at = ? WHERE state = 'waiting_reward' AND n > 0 AND id {IN}
                AND id NOT IN (SELECT grp FROM t_episodes WHERE reward IS NULL AND grp {IN})"""
            if not tx.run(sql, (now, list(groups), list(groups))):
                return
            # A group that was trained on before the store was rebuilt must not train again.
            sql = f"""UPDATE t_groups SET state = 'trained' WHERE state = 'ready' AND id {IN} AND id IN (SELECT e.grp FROM t_episodes e
                JOIN t_members m ON m.eid = e.eid JOIN t_batches b ON b.id = m.batch WHERE b.state = 'trained' AND e.grp {IN})"""
            tx.run(sql, (list(groups), list(groups)))

    def _leave(self, tx: Tx, eps: Collection[Ep]) -> None:
        """Episodes that are deleted leave their groups; a group of none is dropped."""
        groups = [ep.grp for ep in eps if ep.grp]
        for group in groups:
            tx.run("UPDATE t_groups SET n = n - 1 WHERE id = ?", (group,))
        if groups:
            tx.run(f"UPDATE t_groups SET state = 'dropped' WHERE n <= 0 AND id {IN}", (groups,))
