"""The judge's work: complete groups, and single episodes beside alike scored ones, that lack a reward of some name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import uuid4

from slipstream.contract import Group, GroupEpisode, GroupKind, GroupLease, GroupLeaseIn, ScoresIn, Split
from slipstream_proxy.store.base import IN
from slipstream_proxy.store.driver import Row, Tx
from slipstream_proxy.store.groups import GROUP_COLUMNS, group_row
from slipstream_proxy.store.lifecycle import Lifecycle
from slipstream_proxy.store.rows import EP_COLUMNS, Ep, clean, dump, eid_of

COMPLETE = "'waiting_reward', 'ready', 'eval', 'leased'"
FREE = "NOT parked AND (retry_at IS NULL OR retry_at <= ?) AND (judge_lease IS NULL OR judge_until < ?)"


class Judging(Lifecycle):
    def lease_groups(self, wanted: GroupLeaseIn, now: float) -> GroupLease | None:
        """Up to ``limit`` groups in which an episode lacks one of the names, the oldest first. None: there is nothing to judge."""
        names = list(dict.fromkeys(wanted.names))
        lease, until = uuid4().hex, now + wanted.seconds
        with self.db.write(serial=wanted.singles) as tx:
            if wanted.singles:
                self._open_windows(tx, names, wanted.limit, now)
            lacking = f"""SELECT e.grp FROM t_episodes e WHERE e.grp IS NOT NULL AND {self._lacks("e.eid")}"""
            sql = f"""SELECT id FROM t_groups WHERE kind = 'task' AND state IN ({COMPLETE}) AND {FREE} AND id IN ({lacking})
                ORDER BY completed, id LIMIT ?{self.db.lock_rows}"""
            groups = [g for (g,) in tx.all(sql, (now, now, names, len(names), wanted.limit))]
            if wanted.singles and len(groups) < wanted.limit:
                sql = f"""SELECT id FROM t_groups WHERE kind = 'window' AND state = 'window' AND {FREE} AND {self._lacks("single")}
                    ORDER BY completed, id LIMIT ?{self.db.lock_rows}"""
                groups += [g for (g,) in tx.all(sql, (now, now, names, len(names), wanted.limit - len(groups)))]
            if not groups:
                return None
            tx.run(
                f"UPDATE t_groups SET judge_lease = ?, judge_until = ?, judge_worker = ? WHERE id {IN}",
                (lease, until, wanted.worker, groups),
            )
        with self.db.read() as tx:
            return GroupLease(lease=lease, until=until, groups=self._groups(tx, groups, names))

    @staticmethod
    def _lacks(eid: str) -> str:
        """Parameters: names, how many."""
        return f"(SELECT count(DISTINCT r.name) FROM t_rewards r WHERE r.eid = {eid} AND r.call IS NULL AND r.name {IN}) < ?"

    def _open_windows(self, tx: Tx, names: Sequence[str], limit: int, now: float) -> None:
        """A window for each of the oldest ungrouped done episodes that lack a name and have none yet."""
        sql = f"""SELECT {EP_COLUMNS} FROM t_episodes e WHERE state = 'done' AND NOT grouped AND calls > 0
            AND eid NOT IN (SELECT single FROM t_groups WHERE kind = 'window') AND {self._lacks("e.eid")} ORDER BY ended, eid LIMIT ?"""
        rows = []
        for row in tx.all(sql, (list(names), len(names), limit)):
            ep = Ep(*row)
            made = dict(
                zip(
                    GROUP_COLUMNS,
                    group_row(f"w-{ep.eid.replace('/', '-')}"[:160], "", 0, "window", ep, "window", now, single=ep.eid),
                    strict=True,
                )
            )
            made |= {"completed": ep.ended, "n": 1}
            rows.append(tuple(made.values()))
        tx.insert("t_groups", rows)

    def _groups(self, tx: Tx, groups: Collection[str], names: Sequence[str]) -> list[Group]:
        """Groups as the judge sees them, in the order given."""
        columns = "id, kind, key, task, split, model, attempts, single"
        rows = {r[0]: r for r in tx.all(f"SELECT {columns} FROM t_groups WHERE id {IN}", (list(groups),))}
        members = self._members(tx, [g for g in rows if rows[g][1] != "window"])
        shown: dict[str, list[Ep]] = {g: members[g] for g in rows}
        for group, row in rows.items():
            if row[1] == "window":
                single = self._load(tx, [row[7]]).get(row[7])
                shown[group] = [single, *self._alike(tx, single, names)] if single is not None else []
        details = self._details(tx, list({e.eid: e for eps in shown.values() for e in eps}.values()))
        made = []
        for group in groups:
            if not shown.get(group):
                continue
            _, kind, key, task, split, model, attempts, single = rows[group]
            episodes = []
            for ep in shown[group]:
                detail = details[ep.eid]
                calls = [c for c in detail.call_list if c.outcome != "superseded"]
                context = kind == "window" and ep.eid != single
                episodes.append(GroupEpisode(episode=ep.public(), calls=calls, rewards=detail.rewards, context=context))
            made.append(
                Group(
                    id=group, kind=GroupKind(kind), key=key, task=task, split=Split(split), model=model, episodes=episodes, attempts=attempts
                )
            )  # fmt: skip
        return made

    def _alike(self, tx: Tx, ep: Ep, names: Sequence[str]) -> list[Ep]:
        """The most recent scored episodes with the same system prompt and tools."""
        sql = f"""SELECT {EP_COLUMNS} FROM t_episodes e WHERE state = 'done' AND NOT grouped AND key = ? AND model = ? AND alike = ? AND eid <> ?
            AND NOT {self._lacks("e.eid")} ORDER BY ended DESC, eid LIMIT ?"""
        return [
            Ep(*r)
            for r in tx.all(sql, (ep.key, ep.model, ep.alike, ep.eid, list(names), len(names), self.rules.window))
        ]

    # scores

    def post_scores(self, group: str, scores: ScoresIn, now: float) -> bool:
        """False: the lease is not this worker's any more (409). Posting twice under one lease changes nothing."""
        with self.db.write() as tx:
            rows = self._score(tx, group, scores, now)
            if rows is None:
                return False
            self._insert_rewards(tx, rows)
            self.memory.drop({r[2] for r in rows})
            eps = self._load(tx, {r[2] for r in rows})
            combined = self._combined(tx, list(eps))
            tx.update("t_episodes", ("eid",), ("reward",), list(combined.items()))
            self._ready(tx, {ep.grp for ep in eps.values() if ep.grp}, now)
        return True

    def group_key(self, group: str) -> str | None:
        """Whose group it is; None: there is no such group."""
        with self.db.read() as tx:
            found = tx.all("SELECT key FROM t_groups WHERE id = ?", (group,))
        return found[0][0] if found else None

    def _score(
        self, tx: Tx, group: str, scores: ScoresIn, now: float, *, key: str | None = None, force: bool = False
    ) -> list[Row] | None:
        """Settle the lease. → Reward rows to insert; None: refused. ``force``: a mutation that was accepted."""
        found = tx.all("SELECT key, judge_lease, judge_last, attempts FROM t_groups WHERE id = ?", (group,))
        if not found and not (force and key is not None):
            return [] if force else None
        if found:
            key, lease, last, attempts = found[0]
            if last != scores.lease:
                if lease != scores.lease and not force:
                    return None
                self._settle(tx, group, scores, now, attempts)
            elif not force:
                return []
        if scores.failed is not None:
            return []
        eids = [eid_of(key or "-", s.episode) for s in scores.scores]
        known = {eid for eid, ep in self._load(tx, eids).items() if ep.state != "deleted"}
        rows: list[Row] = []
        for eid, score in zip(eids, scores.scores, strict=True):
            if eid in known or (force and not found):
                # The id makes a second post under one lease, and the mutation after the post, change nothing.
                name = f"{scores.lease}/{group}/{score.episode}/{score.name}"
                meta: dict[str, Any] = {**score.meta, "values": score.values} if score.values else dict(score.meta)
                rows.append(
                    (
                        name,
                        0,
                        eid,
                        None,
                        score.name,
                        score.source,
                        score.value,
                        clean(score.reason),
                        None,
                        dump(meta),
                        now,
                    )
                )
        return rows

    def _settle(self, tx: Tx, group: str, scores: ScoresIn, now: float, attempts: int) -> None:
        """The lease ends. A failure without ``retry_after`` counts as an attempt, and too many park the group."""
        failed = scores.failed is not None
        if failed and scores.retry_after is None:
            attempts += 1
        parked = failed and attempts >= self.rules.judge_max_attempts
        tx.run(
            """UPDATE t_groups SET judge_lease = NULL, judge_until = NULL, judge_worker = NULL, judge_last = ?, attempts = ?, parked = ?,
            retry_at = ? WHERE id = ?""",
            (scores.lease, attempts, parked, now + (scores.retry_after or 0.0), group),
        )

    def parked(self) -> list[Group]:
        """Groups that the judge failed at too often, with their episodes."""
        with self.db.read() as tx:
            groups = [
                g
                for (g,) in tx.all("SELECT id FROM t_groups WHERE parked AND state <> 'dropped' ORDER BY completed, id")
            ]
            return self._groups(tx, groups, []) if groups else []

    def unpark(self, group: str | None) -> int:
        """Hand a parked group (None: all of them) out again, its failures forgotten. → How many."""
        which, params = ("parked AND id = ?", (group,)) if group is not None else ("parked", ())
        with self.db.write() as tx:
            return tx.run(f"UPDATE t_groups SET parked = FALSE, attempts = 0, retry_at = 0 WHERE {which}", params)
