"""The trainer's work: ready groups leased as one Arrow table, trained on once or handed back."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple
from uuid import uuid4

from slipstream.contract import BatchAck, BatchLeaseIn, GroupKind
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.store.batch_table import BatchEpisode, batch_table
from slipstream_proxy.store.calls import TOKEN_COLUMNS, CallTable
from slipstream_proxy.store.driver import IN, Driver, Tx
from slipstream_proxy.store.freshness import EQUAL, ROLLED_BACK, SKIPPED, Freshness, Times, taken_back
from slipstream_proxy.store.groups import GroupTable
from slipstream_proxy.store.meta import STALE_RUNS, get_meta, set_meta
from slipstream_proxy.store.rewards import RewardTable
from slipstream_proxy.store.rows import BatchRow, EpisodeRow, MemberRow
from slipstream_proxy.store.scoring import combine_calls
from slipstream_proxy.store.values import ArrowBatch, Rules

OUTCOMES = ("trained", "skipped", "released")


class ReadyGroup(NamedTuple):
    """A group that a trainer may lease."""

    id: str
    key: str
    ready_at: float
    kind: str
    task: str | None
    created: float
    completed: float | None
    judge_last: str | None

    def waited_for(self, now: float) -> str:
        """What it has waited for longest."""
        return Times(self.created, self.completed, self.ready_at, self.judge_last).longest(now)


def share_out(groups: Sequence[tuple[str, str]], most: int, share: float) -> list[str]:
    """The oldest ``most`` of (group, key). One key gets at most ``share`` × ``most`` where other keys wait too."""
    keys = {key for _, key in groups}
    cap = most if len(keys) < 2 else max(1, int(share * most))
    taken: dict[str, int] = defaultdict(int)
    chosen: list[str] = []
    for group, key in groups:
        if len(chosen) < most and taken[key] < cap:
            taken[key] += 1
            chosen.append(group)
    return chosen


def is_equal(members: Sequence[EpisodeRow]) -> bool:
    """Whether all have the same reward, so that there is nothing to compare."""
    return len({ep.reward for ep in members}) == 1


class BatchQueue:
    def __init__(self, db: Driver, rules: Rules, groups: GroupTable, calls: CallTable, rewards: RewardTable) -> None:
        self.db = db
        self.rules = rules
        self.groups = groups
        self.calls = calls
        self.rewards = rewards

    # leases

    def lease(self, wanted: BatchLeaseIn, versions: dict[str, int], live: int, now: float) -> ArrowBatch | None:
        """``versions``: adapter → its version; ``live``: the live one's.

        A run that is more than ``max_staleness`` behind keeps its reward in the baseline of its group and is not
        trained on.
        """
        with self.db.write(serial=False) as tx:
            self.expire(tx, now)
            model = wanted.model or self._fullest(tx)
            if model is None:
                return None
            sql = f"""SELECT {", ".join(ReadyGroup._fields)} FROM t_groups
                WHERE state = 'ready' AND split = 'train' AND model = ? ORDER BY ready_at, created,
                    id LIMIT ?{self.db.lock_rows}"""
            ready = [ReadyGroup(*r) for r in tx.all(sql, (model, 4 * wanted.max_groups + 64))]
            members = self.groups.members(tx, [g.id for g in ready])
            fresh = Freshness(versions, live, wanted.max_staleness, taken_back(tx))
            ready = self._usable(tx, ready, members, fresh, now)
            if not ready or (len(ready) < wanted.min_groups and min(g.ready_at for g in ready) > now - wanted.max_wait):
                return None
            bare = self._equal(ready, members) if wanted.equal == "rewards" else set()
            whole = [(g.id, g.key) for g in ready if g.id not in bare]
            chosen = {*share_out(whole, wanted.max_groups, self.rules.key_share), *bare}
            leased = [(g, ep) for g in ready if g.id in chosen for ep in members[g.id]]
            batch, lease = f"b{int(now * 1000):013d}-{uuid4().hex[:8]}", uuid4().hex
            until = now + wanted.seconds
            tx.insert("t_batches", [BatchRow(batch, lease, wanted.worker, model, "leased", until, now)])
            sql = f"UPDATE t_groups SET state = 'leased', batch = ?, cause = NULL WHERE id {IN}"
            tx.run(sql, (batch, list(chosen)))
            self._note(tx, leased, fresh)
            tx.insert("t_members", [MemberRow(batch, g.id, ep.eid, ep.reward) for g, ep in leased])
            credit = self.rules.credit == "call"
            latest = self.rewards.latest(tx, [ep.eid for _, ep in leased]) if credit else {}
        # Outside the transaction: what is read below does not change any more, and the ingester need not wait for it.
        with self.db.read() as tx:
            calls = self.calls.rows(tx, [ep for g, ep in leased if g.id not in bare], TOKEN_COLUMNS)
        found = [
            BatchEpisode(
                g.id,
                g.kind,
                g.task,
                ep,
                None if g.id in bare else calls[ep.eid],
                combine_calls(self.rules, latest.get(ep.eid, ())),
            )
            for g, ep in leased
        ]
        return ArrowBatch(batch, lease, until, batch_table(found, fresh, wanted.form))

    def _fullest(self, tx: Tx) -> str | None:
        """The model with the most ready groups."""
        sql = """SELECT model FROM t_groups WHERE state = 'ready' AND split = 'train'
            GROUP BY model ORDER BY count(*) DESC, model LIMIT 1"""
        found = tx.all(sql)
        return found[0][0] if found else None

    def _usable(
        self, tx: Tx, ready: Sequence[ReadyGroup], members: dict[str, list[EpisodeRow]], fresh: Freshness, now: float
    ) -> list[ReadyGroup]:
        """Groups in which nothing can be trained on are settled, with the cause. → The others."""
        losses = {g.id: loss for g in ready if (loss := fresh.loss(members[g.id], g.waited_for(now)))}
        self.groups.lose(tx, losses)
        return [g for g in ready if g.id not in losses]

    def _equal(self, ready: Sequence[ReadyGroup], members: dict[str, list[EpisodeRow]]) -> set[str]:
        """Groups in which there is nothing to compare. Those of other kinds than ``task`` share a baseline."""
        if self.rules.credit == "call":
            return set()
        return {g.id for g in ready if g.kind == GroupKind.TASK and is_equal(members[g.id])}

    def _note(self, tx: Tx, leased: Sequence[tuple[ReadyGroup, EpisodeRow]], fresh: Freshness) -> None:
        """Count what a batch holds and does not learn from: runs that are too old, groups with equal rewards."""
        members: dict[str, list[EpisodeRow]] = defaultdict(list)
        for group, ep in leased:
            members[group.id].append(ep)
        equal = [g for g, eps in members.items() if is_equal(eps)]
        if equal and self.rules.credit != "call":
            tx.run(f"UPDATE t_groups SET cause = ? WHERE id {IN}", (EQUAL, equal))
        if stale := sum(fresh.stale_runs(eps) for eps in members.values()):
            set_meta(tx, STALE_RUNS, str(int(get_meta(tx, STALE_RUNS) or 0) + stale))

    def members(self, batch: str) -> JsonObject:
        """``{"groups": [id], "episodes": [[key, episode, group]]}`` of a leased batch, for its ``ack`` mutation.

        With it a rebuilt store knows what was trained on.
        """
        with self.db.read() as tx:
            rows = tx.all("SELECT grp, eid FROM t_members WHERE batch = ? ORDER BY grp, eid", (batch,))
        return {
            "groups": list(dict.fromkeys(g for g, _ in rows)),
            "episodes": [[*eid.split("/", 1), g] for g, eid in rows],
        }

    # leases that end

    def next_expired(self, tx: Tx) -> float:
        """When the first lease runs out; infinite: there is none."""
        ((first,),) = tx.all("SELECT min(until) FROM t_batches WHERE state = 'leased'")
        return math.inf if first is None else float(first)

    def expire(self, tx: Tx, now: float) -> None:
        """Leases that ran out: their groups are ready again. An ack is still taken until another lease has them."""
        if tx.run("UPDATE t_batches SET state = 'expired' WHERE state = 'leased' AND until < ?", (now,)):
            self._hand_back(tx)

    def release(self, tx: Tx, worker: str) -> int:
        """What a worker had leased is free at once. → Leases released."""
        sql = "UPDATE t_batches SET state = 'expired' WHERE state = 'leased' AND worker = ?"
        count = tx.run(sql, (worker,))
        self._hand_back(tx)
        return count

    def _hand_back(self, tx: Tx) -> None:
        tx.run(
            """UPDATE t_groups SET state = 'ready' WHERE state = 'leased'
            AND batch IN (SELECT id FROM t_batches WHERE state = 'expired')"""
        )

    def ack(self, batch: str, ack: BatchAck, now: float) -> bool:
        """False: the lease is not this worker's any more (409). The same ack twice changes nothing."""
        with self.db.write() as tx:
            return self.settle(tx, batch, ack)

    def settle(self, tx: Tx, batch: str, ack: BatchAck) -> bool:
        """The trainer's word on a batch. False: the lease is not this worker's any more."""
        found = tx.all("SELECT lease, state FROM t_batches WHERE id = ?", (batch,))
        if not found or found[0][0] != ack.lease:
            return False
        return self._settle_known(tx, batch, found[0][1], ack)

    def replay(self, tx: Tx, batch: str, ack: BatchAck, members: JsonObject | None, now: float) -> None:
        """An ack that was accepted before. If the store has been rebuilt since, ``members`` name what the batch was."""
        found = tx.all("SELECT state FROM t_batches WHERE id = ?", (batch,))
        if found:
            self._settle_known(tx, batch, found[0][0], ack)
            return
        tx.insert("t_batches", [BatchRow(batch, ack.lease, "", "", "expired", now, now)])
        named = (members or {}).get("episodes", ())
        rows = [MemberRow(batch, group, f"{key}/{episode}") for key, episode, group in named]
        tx.insert("t_members", rows)
        if rows:
            # Only what trains is settled for good; a group of the rebuilt store may be another cut of the same
            # episodes.
            tx.run(
                f"""UPDATE t_groups SET batch = ? WHERE state IN ('ready', 'waiting_reward')
                AND id IN (SELECT grp FROM t_episodes WHERE eid {IN})""",
                (batch, [r.eid for r in rows]),
            )
        self._write_outcome(tx, batch, ack)

    def _settle_known(self, tx: Tx, batch: str, state: str, ack: BatchAck) -> bool:
        if state in OUTCOMES:
            return bool(state == ack.outcome)
        leased_again = """SELECT 1 FROM t_groups WHERE batch <> ?
            AND id IN (SELECT grp FROM t_members WHERE batch = ?) LIMIT 1"""
        if tx.all(leased_again, (batch, batch)):
            return False
        self._write_outcome(tx, batch, ack)
        return True

    def _write_outcome(self, tx: Tx, batch: str, ack: BatchAck) -> None:
        after = {"trained": "trained", "skipped": "skipped", "released": "ready"}[ack.outcome]
        waiting = "'leased', 'ready', 'waiting_reward'" if after == "trained" else "'leased', 'ready'"
        sql = f"UPDATE t_groups SET state = ?, cause = coalesce(cause, ?) WHERE batch = ? AND state IN ({waiting})"
        tx.run(sql, (after, SKIPPED if after == "skipped" else None, batch))
        tx.run(
            "UPDATE t_batches SET state = ?, adapter = ?, step = ?, reason = ? WHERE id = ?",
            (ack.outcome, ack.adapter, ack.step, ack.reason, batch),
        )
        if ack.advantages:
            eids = [eid for (eid,) in tx.all("SELECT eid FROM t_members WHERE batch = ?", (batch,))]
            named = {eid: ack.advantages.get(eid, ack.advantages.get(eid.split("/", 1)[1])) for eid in eids}
            found = [(batch, eid, advantage) for eid, advantage in named.items() if advantage is not None]
            tx.update("t_members", ("batch", "eid"), ("advantage",), found)

    def drop_adapter(self, adapter: str) -> int:
        """Groups with episodes sampled from an adapter that was taken back never train. → Groups dropped."""
        with self.db.write() as tx:
            sql = """UPDATE t_groups SET state = 'dropped', cause = ? WHERE split = 'train'
                AND state IN ('forming', 'waiting_reward', 'ready', 'leased')
                AND id IN (SELECT grp FROM t_episodes WHERE grp IS NOT NULL AND strpos(adapters, ?) > 0)"""
            return tx.run(sql, (ROLLED_BACK, f'"{adapter}"'))
