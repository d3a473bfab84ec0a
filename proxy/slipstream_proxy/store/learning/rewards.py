"""Rewards as they came, the number that trains, and the outcomes that the gate reads, a few at a time.

An episode is written down twice: when it is assigned (``reward`` is NULL), and when it is done and its combined reward
is known for the first time. Later corrections change the episode and what trains, not this log. So the order is the
same for every proxy and after a restart, and evidence never looks back. What the gate has read goes after ``LOOK_BACK``
more, so the log does not grow with the store.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pydantic import JsonValue

from slipstream.contract import Reward, is_sibling
from slipstream.shared.refusals import MAX_REFUSAL_CHARS, refuses
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.log.spool import BOOT_ID
from slipstream_proxy.store.conversation.order import Stamp, StoreClock, place
from slipstream_proxy.store.learning.groups import likeness_of
from slipstream_proxy.store.tables.driver import IN, Driver, Row, Tx
from slipstream_proxy.store.tables.memory import Memory
from slipstream_proxy.store.tables.rows import (
    REWARD_COLUMNS,
    EpisodeRow,
    PinRow,
    RewardRow,
    Written,
    load,
)
from slipstream_proxy.store.tables.schema import DayTables
from slipstream_proxy.store.tables.tallies import CountedReward, TallyTable, get_meta, newest_rewards, set_meta
from slipstream_proxy.store.values import Outcome, Rules


class LatestReward(NamedTuple):
    """An episode's latest reward of a name, for itself (``call`` None) or for one of its calls."""

    call: str | None
    name: str
    value: float


def combine(rules: Rules, rows: Iterable[LatestReward]) -> float | None:
    """Σ weight × value over the names of ``rules.weights``.

    A name's value is the episode's own plus, unless credit goes to calls, the sum of its calls'. None while a name is
    missing.
    """
    own: dict[str, float] = {}
    calls: dict[str, float] = defaultdict(float)
    for call, name, value in rows:
        if call is None:
            own[name] = value
        else:
            calls[name] += value
    total = 0.0
    for name, weight in rules.weights.items():
        if name not in own and name not in calls:
            return None
        total += weight * (own.get(name, 0.0) + (calls.get(name, 0.0) if rules.credit == "episode" else 0.0))
    return total


def combine_calls(rules: Rules, rows: Iterable[LatestReward]) -> dict[str, float]:
    """Call → its own weighted reward, where credit goes to calls."""
    found: dict[str, float] = defaultdict(float)
    for call, name, value in rows:
        if rules.credit == "call" and call is not None and name in rules.weights:
            found[call] += rules.weights[name] * value
    return found


ORPHAN_CONDITION = "NOT EXISTS (SELECT 1 FROM t_episodes e WHERE e.eid = r.eid)"
"""Of a reward ``r``. PostgreSQL compares NOT IN row by row where what is in does not fit its memory."""

CLOCK_DIFFERENCE_S = 10.0
"""Seconds by which two proxies' clocks, as the store sees them, differ at most."""
LATE_REWARD_S = 86_400.0
"""Seconds that a reward may be older than ``orphan_ttl`` and not be gone: the clock was set, or no proxy ran."""


class RewardTable:
    def __init__(self, db: Driver, rules: Rules, memory: Memory, tallies: TallyTable) -> None:
        self.db = db
        self.rules = rules
        self.memory = memory
        self.tallies = tallies
        self._clock = StoreClock()
        self.remembers = not db.shared
        """What was read of rewards, and what is written, is all that there is."""

    def insert(self, tx: Tx, rows: Sequence[RewardRow], written: Mapping[str, Written] | None = None) -> None:
        """Append rows; one whose id is there already is left out.

        ``written``: when each was; one that is not named is written now. Another proxy may have stored younger rewards
        already: a row then takes its place before them.
        """
        if not rows:
            return
        ids = [r.id for r in rows]
        seen = self.memory.reward_ids
        known = {*seen.stored(ids), *self._stored(tx, seen.unsure(ids))}
        seen.add(ids)
        unknown = {r.id: r for r in rows if r.id not in known}.values()
        first = self.db.next_seq(tx, len(unknown)) if unknown else 0
        fresh = [r._replace(seq=first + i) for i, r in enumerate(unknown)]
        tx.insert("t_rewards", fresh)
        for row in fresh:
            self.memory.rewards.note(row)
        if fresh and self.db.shared:
            self._put_in_order(tx, fresh, written or {})

    def _stored(self, tx: Tx, ids: Sequence[str]) -> list[str]:
        if not ids:
            return []
        if self.db.shared:
            return [i for (i,) in tx.all(f"SELECT id FROM t_rewards WHERE id {IN}", (ids,))]
        # ids have no index there, and those of new rewards sort late
        return [i for (i,) in tx.all(f"SELECT id FROM t_rewards WHERE id >= ? AND id {IN}", (min(ids), ids))]

    def _put_in_order(self, tx: Tx, fresh: Sequence[RewardRow], written: Mapping[str, Written]) -> None:
        """Give rows that were just appended the places that their times say: the rows' numbers change hands."""
        now = Written(BOOT_ID, time.monotonic(), time.time())
        stamps = [self._clock.read(tx, r.id, *written.get(r.id, now)) for r in fresh]
        tx.insert("t_stamps", [(s.call, s.boot, s.tick, s.at) for s in stamps])
        sql = f"""SELECT r.eid, r.seq, s.id, s.boot, s.tick, s.ts FROM t_stamps s JOIN t_rewards r ON r.id = s.id
            WHERE r.eid {IN} AND s.ts >= ? ORDER BY r.seq"""
        near: dict[str, list[tuple[int, Stamp]]] = defaultdict(list)
        for eid, seq, *times in tx.all(
            sql, (list({r.eid for r in fresh}), min(s.at for s in stamps) - CLOCK_DIFFERENCE_S)
        ):
            near[eid].append((seq, Stamp(*times)))
        moved: list[Row] = []
        for rows in near.values():
            ordered: list[Stamp] = []
            for _, stamp in rows:
                ordered.insert(place(ordered, stamp, None, lambda _: ()), stamp)
            pairs = zip(rows, ordered, strict=True)
            moved += [(stamp.call, seq) for (seq, was), stamp in pairs if was.call != stamp.call]
        tx.update("t_rewards", ("id",), ("seq",), moved)
        if moved:
            self.memory.rewards.drop(near)

    def of(self, tx: Tx, eps: Collection[EpisodeRow]) -> dict[str, list[Reward]]:
        """Each episode's rewards, in the order in which they came."""
        found: dict[str, list[Reward]] = defaultdict(list)
        if eps:
            adapter = {e.eid: e.adapter for e in eps}
            sql = f"SELECT {REWARD_COLUMNS} FROM t_rewards WHERE eid {IN} ORDER BY seq"
            for row in map(RewardRow._make, tx.all(sql, (list(adapter),))):
                found[row.eid].append(row.public(adapter[row.eid]))
        return found

    def idempotency_keys(self, tx: Tx, eids: Collection[str]) -> set[tuple[str, str]]:
        """(episode, idempotency key) of the rewards of these episodes."""
        if not eids:
            return set()
        sql = f"SELECT eid, idem FROM t_rewards WHERE idem IS NOT NULL AND eid {IN}"
        return {(eid, idem) for eid, idem in tx.all(sql, (list(eids),))}

    def latest(self, tx: Tx, eids: Collection[str]) -> dict[str, list[LatestReward]]:
        """Each episode's latest row per (call, name), whatever its source."""
        found: dict[str, list[LatestReward]] = defaultdict(list)
        if eids:
            sql = f"""SELECT DISTINCT ON (eid, call, name) eid, call, name, value FROM t_rewards WHERE eid {IN}
                ORDER BY eid, call, name, seq DESC"""
            for eid, call, name, value in tx.all(sql, (list(eids),)):
                found[eid].append(LatestReward(call, name, value))
        return found

    def newest(self, tx: Tx, eids: Collection[str]) -> list[CountedReward]:
        """Each episode's latest row per (call, name, source). They are remembered: ask in a transaction only after
        whose failure everything is forgotten; where others write, while ``remembers`` alone.
        """
        if not self.remembers:
            return newest_rewards(tx, eids)
        held = self.memory.rewards
        asked: dict[str, list[CountedReward]] = {eid: [] for eid in eids if eid not in held}
        found = [reward for eid in eids if eid in held for reward in held.of(eid)]
        for reward in newest_rewards(tx, asked) if asked else ():
            asked[reward.eid].append(reward)
        for eid, rewards in asked.items():
            held.keep(eid, rewards)
            found += rewards
        return found

    def combined(self, tx: Tx, eids: Collection[str]) -> dict[str, float | None]:
        """Episode → the number that trains; None while a weighted name is missing. As ``newest``, on when to ask."""
        rows: dict[tuple[str, str, str], CountedReward] = {}
        for r in self.newest(tx, eids):
            at = (r.eid, r.call or "", r.name)
            if at not in rows or rows[at].seq < r.seq:
                rows[at] = r
        latest: dict[str, list[LatestReward]] = defaultdict(list)
        for at in sorted(rows):
            r = rows[at]
            latest[r.eid].append(LatestReward(r.call, r.name, r.value))
        return {eid: combine(self._rules(eid), latest[eid]) if eid in latest else None for eid in eids}

    def _rules(self, eid: str) -> Rules:
        """No agent rewards a step that it did not see: of such a one only what judges give counts."""
        if not is_sibling(eid):
            return self.rules
        judged = self.rules.judged
        weights = {name: w for name, w in self.rules.weights.items() if name in judged and w}
        return replace(self.rules, weights=weights or dict.fromkeys(judged, 1.0))

    def orphans(self, tx: Tx) -> set[str]:
        """Episodes with rewards and no calls."""
        return {eid for (eid,) in tx.all(f"SELECT DISTINCT eid FROM t_rewards r WHERE {ORPHAN_CONDITION}")}

    def count_orphans(self, tx: Tx, now: float) -> int:
        """Episodes with rewards and no calls. Where nobody else writes they are known by now; else only rewards that
        the sweep may have left are compared with the episodes.
        """
        if self.memory.orphans is not None:
            return len(self.memory.orphans)
        sql = f"SELECT count(DISTINCT eid) FROM t_rewards r WHERE ts > ? AND {ORPHAN_CONDITION}"
        return int(tx.all(sql, (now - self.rules.orphan_ttl - LATE_REWARD_S,))[0][0])

    def expire_orphans(self, tx: Tx, now: float, orphans: list[str] | None) -> set[str]:
        """Rewards whose episode did not come within ``orphan_ttl`` are dropped. ``orphans`` None: not known.

        → Their episodes.
        """
        old = now - self.rules.orphan_ttl
        if orphans is not None:
            found = tx.all(f"SELECT DISTINCT eid FROM t_rewards WHERE ts < ? AND eid {IN}", (old, orphans))
        else:
            found = tx.all(f"SELECT DISTINCT eid FROM t_rewards r WHERE ts < ? AND {ORPHAN_CONDITION}", (old,))
        eids = [eid for (eid,) in found]
        if eids:
            self.memory.drop(eids)
            known = {e for (e,) in tx.all(f"SELECT eid FROM t_expired WHERE eid {IN}", (eids,))}
            tx.insert("t_expired", [(e, now) for e in eids if e not in known])
            with self.tallies.around(tx, eids):
                tx.run(f"DELETE FROM t_rewards WHERE eid {IN}", (eids,))
        return set(eids)

    def apply_rules(self) -> None:
        """Compute the episodes' rewards again after a change of ``reward.weights`` or ``reward.credit``."""
        now = f"{sorted(self.rules.weights.items())} {self.rules.credit}"
        with self.db.write() as tx:
            before = get_meta(tx, "reward rules")
            if before == now:
                return
            set_meta(tx, "reward rules", now)
            if before is not None:
                counting = "SELECT eid FROM t_episodes WHERE state <> 'deleted' AND error IS NULL"
                eids = [eid for (eid,) in tx.all(counting)]
                rows: list[Row] = list(self.combined(tx, eids).items())
                tx.update("t_episodes", ("eid",), ("reward",), rows)
                tx.run(
                    "UPDATE t_groups SET state = 'waiting_reward' WHERE state = 'ready' AND id IN"
                    " (SELECT grp FROM t_episodes WHERE reward IS NULL AND grp IS NOT NULL)"
                )
                self.tallies.recount(tx)


FORMAL_REFUSAL_CONDITION = """(finish LIKE '%"content_filter"%' OR reply LIKE '%"refusal":"%')"""
"""The reply says in a field that it is a refusal."""
REWARD_SUMS = (
    "count(*)",
    "sum(seconds)",
    "sum(completion_tokens)",
    """sum(CASE WHEN finish LIKE '%"length"%' THEN 1 ELSE 0 END)""",
    f"sum(CASE WHEN {FORMAL_REFUSAL_CONDITION} THEN 1 ELSE 0 END)",
)
"""Of an episode's calls in a day's table."""
FAILED_RUN_REWARD = math.nan
"""What stands for a reward in the log where the run failed: it is no evidence of anything."""
LOOK_BACK = 50_000
"""An episode that was done, went on, and is done again is found among so many newest numbers."""


class OutcomeLog:
    def __init__(self, db: Driver, days: DayTables, memory: Memory) -> None:
        self.db, self.days, self.memory = db, days, memory

    def write(
        self,
        tx: Tx,
        now: float,
        *,
        assigned: Sequence[tuple[PinRow, str]] = (),
        turned: Collection[EpisodeRow] = (),
        ended: Iterable[EpisodeRow] = (),
    ) -> None:
        """Write down that episodes were assigned, each with its task as far as that is known; that runs failed, or are
        assigned again because the model said something; and those that are final and were not before.
        """
        rows: list[Row] = [(p.eid, p.model, p.adapter, p.arm, p.chances, task, None, p.ts) for p, task in assigned]
        rows += [
            _outcome(ep, None if ep.error is None else FAILED_RUN_REWARD, now)
            for ep in sorted(turned, key=lambda ep: ep.eid)
            if ep.adapter and ep.split == "train"
        ]
        final = self._final(ended)
        if rows or final:
            self.db.in_order(tx)
            rows += [_outcome(ep, ep.reward, now) for ep in self._fresh(tx, final)]
        if rows:
            first = self.db.next_seq(tx, len(rows))
            tx.insert("t_outcomes", [(first + i, *row) for i, row in enumerate(rows)])

    @staticmethod
    def _final(eps: Iterable[EpisodeRow]) -> dict[str, EpisodeRow]:
        return {
            ep.eid: ep
            for ep in eps
            if ep.state == "done" and ep.reward is not None and ep.adapter and ep.split == "train"
        }

    def _fresh(self, tx: Tx, final: dict[str, EpisodeRow]) -> list[EpisodeRow]:
        """Those that are not in the log, in the order in which they ended."""
        held = self.memory.final
        if held is None or len(held) > 2 * LOOK_BACK:
            which, wanted = (f"AND eid {IN}", [list(final)]) if self.db.shared else ("", [])
            sql = f"""SELECT DISTINCT eid FROM t_outcomes WHERE seq > (SELECT coalesce(max(seq), 0) - ? FROM t_outcomes)
                AND reward IS NOT NULL AND reward <> CAST('NaN' AS FLOAT8) {which}"""
            held = {eid for (eid,) in tx.all(sql, (LOOK_BACK, *wanted))} if final else set()
            self.memory.final = None if self.db.shared or not final else held
        fresh = sorted((final[eid] for eid in final.keys() - held), key=lambda ep: (ep.ended or 0.0, ep.eid))
        held.update(ep.eid for ep in fresh)
        return fresh

    def since(self, model: str, after: int, limit: int = 2000) -> list[Outcome]:
        """A trained model's assignments and final rewards in their order: those numbered above ``after``."""
        sql = """SELECT seq, adapter, arm, chances, task, reward, ts, eid FROM t_outcomes WHERE seq > ? AND model = ?
            ORDER BY seq LIMIT ?"""
        with self.db.read() as tx:
            rows = tx.all(sql, (after, model, limit))
            labels = self._labels(tx, [row[-1] for row in rows if row[5] is not None])
        found = [Outcome(*row) for row in rows]
        return [o._replace(named=labels[o.eid][0], tags=labels[o.eid][1]) if o.eid in labels else o for o in found]

    def labels(self, eid: str) -> tuple[str | None, str]:
        """An episode's task, as its agent named it, and its tags as JSON."""
        with self.db.read() as tx:
            return self._labels(tx, [eid]).get(eid, (None, "{}"))

    def measures(self, eids: list[str], names: Collection[str]) -> dict[str, dict[str, float]]:
        """Side measures of episodes (``gate.guards``), of their calls and rewards as they are stored now."""
        found: dict[str, dict[str, float]] = {eid: {} for eid in eids}
        rewards = {name.removeprefix("reward.") for name in names if name.startswith("reward.")}
        with self.db.read() as tx:
            if set(names) - {f"reward.{name}" for name in rewards}:
                self._of_calls(tx, found, names)
            sql = f"SELECT eid, name, value FROM t_rewards WHERE call IS NULL AND eid {IN} AND name {IN} ORDER BY seq"
            for eid, name, value in tx.all(sql, (eids, list(rewards))) if rewards else ():
                found[eid][f"reward.{name}"] = value
        return found

    def _of_calls(self, tx: Tx, found: dict[str, dict[str, float]], names: Collection[str]) -> None:
        eids, sums = list(found), {eid: [0.0] * len(REWARD_SUMS) for eid in found}
        ((since, until),) = tx.all(f"SELECT min(started), max(last_at) FROM t_episodes WHERE eid {IN}", (eids,))
        if since is None:
            return
        span, broken, plain = (eids, since, until), Counter[str](), Counter[str]()
        where = f"WHERE eid {IN} AND ts >= ? AND ts <= ? AND outcome <> 'superseded'"
        for table in self.days.tables(tx, since, until):
            for eid, *values in tx.all(f"SELECT eid, {', '.join(REWARD_SUMS)} FROM {table} {where} GROUP BY eid", span):
                sums[eid] = [a + float(b) for a, b in zip(sums[eid], values, strict=True)]
            if "tool_errors" in names:
                sql = f"SELECT eid, reply FROM {table} {where} AND reply LIKE '%\"tool_calls\"%'"
                broken.update(eid for eid, reply in tx.all(sql, span) if _has_broken_tools(reply))
            if "refusals" in names:
                sql = (
                    f"SELECT eid, reply FROM {table} {where} AND length(reply) < "
                    f"{MAX_REFUSAL_CHARS} AND NOT {FORMAL_REFUSAL_CONDITION}"
                )
                plain.update(eid for eid, reply in tx.all(sql, span) if _refuses(reply))
        for eid, (n, seconds, tokens, cut, refused) in sums.items():
            if n:
                shares = {"cut_off": cut / n, "refusals": (refused + plain[eid]) / n, "tool_errors": broken[eid] / n}
                means = {"turns": n, "reply_tokens": tokens / n, "seconds": seconds / n}
                found[eid] |= {name: value for name, value in {**shares, **means}.items() if name in names}

    def tools(self, eids: list[str]) -> dict[str, Counter[str]]:
        """Episode → how often each tool was called."""
        found: dict[str, Counter[str]] = {eid: Counter() for eid in eids}
        span = f"SELECT min(started), max(last_at) FROM t_episodes WHERE eid {IN}"
        with self.db.read() as tx:
            ((since, until),) = tx.all(span, (eids,))
            for table in self.days.tables(tx, since, until) if since is not None else ():
                sql = f"""SELECT eid, reply FROM {table} WHERE eid {IN} AND ts >= ? AND ts <= ?
                    AND outcome <> 'superseded' AND reply LIKE '%"tool_calls"%'"""
                for eid, reply in tx.all(sql, (eids, since, until)):
                    found[eid].update(n for f in _functions(reply) if isinstance(n := f.get("name"), str))
        return found

    @staticmethod
    def _labels(tx: Tx, eids: list[str]) -> dict[str, tuple[str | None, str]]:
        sql = f"SELECT eid, task, tags FROM t_episodes WHERE eid {IN}"
        return {eid: (task, tags) for eid, task, tags in tx.all(sql, (eids,))} if eids else {}

    def last(self, model: str, count: int) -> int:
        """The number after which a model has ``count`` rewards left; 0 if it has no more than that."""
        sql = "SELECT seq FROM t_outcomes WHERE model = ? AND reward IS NOT NULL ORDER BY seq DESC LIMIT 1 OFFSET ?"
        with self.db.read() as tx:
            rows = tx.all(sql, (model, count))
        return int(rows[0][0]) if rows else 0

    def name_of(self, seq: int) -> list[JsonValue] | None:
        """Which outcome this is, in words that hold in a store that was filled again from the spool: there numbers are
        others.
        """
        with self.db.read() as tx:
            found = tx.all("SELECT eid, reward IS NOT NULL FROM t_outcomes WHERE seq = ?", (seq,))
        return list(found[0]) if found else None

    def place(self, model: str, seq: int, name: Sequence[JsonValue] | None) -> int:
        """The number that an outcome has here which had number ``seq`` and this name (``name_of``)."""
        if name is None:
            return seq
        sql = """SELECT seq FROM t_outcomes WHERE model = ? AND eid = ? AND (reward IS NOT NULL) = ?
            ORDER BY abs(seq - ?) LIMIT 1"""
        with self.db.read() as tx:
            if found := tx.all(sql, (model, *name, seq)):
                return int(found[0][0])
            ((newest,),) = tx.all("SELECT coalesce(max(seq), 0) FROM t_outcomes")
        return min(seq, int(newest))

    def prune(self, model: str, read: int) -> int:
        """Drop a model's up to number ``read`` that ``note`` would not look at any more. → How many they were."""
        with self.db.write() as tx:
            ((newest,),) = tx.all("SELECT coalesce(max(seq), 0) FROM t_outcomes")
            old = min(read, int(newest) - LOOK_BACK)
            return tx.run("DELETE FROM t_outcomes WHERE model = ? AND seq <= ?", (model, old)) if old > 0 else 0


def _outcome(ep: EpisodeRow, reward: float | None, now: float) -> Row:
    """A row of ``t_outcomes`` without its number."""
    return (ep.eid, ep.model, ep.adapter, ep.arm, ep.chances or "", _likeness(ep), reward, now)


def _likeness(ep: EpisodeRow) -> str:
    """What makes episodes comparable: their task, else the prompt that they have in common."""
    name = ep.task if ep.grouped else likeness_of(ep.alike)
    return f"{ep.key}/{name}" if name else ""


def _refuses(reply: str) -> bool:
    """Whether a reply without tool calls begins as refusals do. ``reply``: messages, as JSON."""
    return any(refuses(message) for message in load(reply, []))


def _has_broken_tools(reply: str) -> bool:
    """Whether arguments of a reply's tool calls are no JSON. ``reply``: messages, as JSON."""
    for function in _functions(reply):
        said = function.get("arguments")
        try:
            json.loads(said if said and isinstance(said, str) else "{}")
        except (ValueError, RecursionError):
            return True
    return False


def _functions(reply: str) -> Iterator[JsonObject]:
    """Name and arguments of a reply's tool calls."""
    for message in load(reply, []):
        for call in (message.get("tool_calls") or []) if isinstance(message, dict) else []:
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                yield function
