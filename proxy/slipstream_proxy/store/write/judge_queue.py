"""The judge's work: complete groups, and single episodes beside alike scored ones, that lack a reward of some name.

The newest come first; none that has its scores, none that is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite
from typing import NamedTuple, TypeVar
from uuid import uuid4

from slipstream import contract as c
from slipstream_proxy.store.learning.groups import (
    HASH_CHARS,
    JUDGE_STAGE,
    STALE_STATE,
    GroupTable,
    freshness_of,
    likeness_of,
    window_of,
)
from slipstream_proxy.store.learning.rewards import OutcomeLog, RewardTable
from slipstream_proxy.store.read.episodes import EpisodeTable
from slipstream_proxy.store.tables.driver import IN, Driver, Tx
from slipstream_proxy.store.tables.memory import Memory, PacedFigure
from slipstream_proxy.store.tables.rows import EPISODE_COLUMNS, EpisodeRow, RewardRow, clean, dump, eid_of, load
from slipstream_proxy.store.tables.tallies import TallyTable
from slipstream_proxy.store.values import Rules

T = TypeVar("T")
GROUPS_PER_CHUNK = 256
"""Groups that are looked at together."""
MAX_GROUPS = 4096
GROUPS_PER_QUERY = 512
"""Groups that a query names one by one."""
COMPLETE_STATES = "'waiting_reward', 'ready', 'eval', 'leased'"
FAILURE_LENGTH = 300
"""Characters of a failure that a group keeps."""
FREE_CONDITION = "NOT parked AND (retry_at IS NULL OR retry_at <= ?) AND (judge_lease IS NULL OR judge_until < ?)"


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
    """Complete groups that lack a name, when the oldest was complete, and how many are parked."""

    groups: int
    oldest: float | None
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
        if len(self._pending.get(tuple(names), ())) > self._most.get(tuple(names), MAX_GROUPS):
            self._prune(tx, names)
        possible = self._possible(tx, names)
        if not possible:
            return []
        sql = (
            f"SELECT id, model FROM t_groups WHERE kind IN ({kinds}) AND state IN "
            f"({COMPLETE_STATES}) AND {FREE_CONDITION}"
        )
        newest = "ORDER BY completed DESC, id"
        which, more = (f"AND id {IN}", [list(possible)]) if len(possible) <= GROUPS_PER_QUERY else ("", [])
        rows = tx.all(f"{sql} {which} {newest}", (now, now, *more))
        waiting = {group: model for group, model in rows if group in possible}
        chosen: list[str] = []
        for part in batched(waiting, GROUPS_PER_CHUNK):
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
            wanted = f"FILTER (WHERE kind IN ({kinds}) AND state IN ({COMPLETE_STATES}) AND NOT parked)"
            # rows by nothing but their id, so that an index finds a few
            sql = f"""SELECT count(*) {wanted}, min(completed) {wanted}
                FROM t_groups WHERE id {IN}"""
            found = tx.all(sql, (lacking,)) if lacking else [(0, None)]
            ((parked,),) = tx.all("SELECT count(*) FROM t_groups WHERE parked AND state <> 'dropped'")
        ((groups, oldest),) = found
        return Backlog(groups, oldest, parked)

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
        return {g for (g,) in tx.all(f"SELECT id FROM t_groups WHERE state IN ({COMPLETE_STATES})")}

    def _prune(self, tx: Tx, names: Sequence[str]) -> None:
        """Leave out what was trained on or lost meanwhile."""
        pending = self._pending[tuple(names)]
        pending &= self._complete(tx)
        self._most[tuple(names)] = 2 * len(pending) + MAX_GROUPS

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
        sql = f"""SELECT id FROM t_groups WHERE split <> 'eval' AND state IN ('waiting_reward', 'ready')
            AND again = 0 AND NOT kept AND id {IN}"""
        training = [g for (g,) in tx.all(sql, (list(found),))] if found else []
        members = self.groups.members(tx, training)
        losses = {
            g: loss
            for g in training
            if (loss := fresh[found[g]].loss(members[g], JUDGE_STAGE)) and loss.state == STALE_STATE
        }
        self.groups.lose(tx, losses)
        return [g for g in found if g not in losses]


AGREEMENT_REWARDS = 50_000
"""Newest rewards of which the judge's agreement with others is told."""


MAX_SINGLE_EPISODES = 1024
"""Latest ungrouped episodes that may get a window."""


class JudgedGroup(NamedTuple):
    """What the judge sees of a group's row."""

    id: str
    kind: str
    key: str
    task: str | None
    split: str
    model: str
    attempts: int
    single: str | None


class JudgeLease(NamedTuple):
    """How a group's lease stands. ``last``: the lease under which scores were posted last."""

    key: str
    lease: str | None
    last: str | None
    attempts: int


@dataclass(eq=False)
class JudgeQueue:
    db: Driver
    rules: Rules
    memory: Memory
    episodes: EpisodeTable
    groups: GroupTable
    rewards: RewardTable
    outcomes: OutcomeLog
    tallies: TallyTable
    candidates: JudgeCandidates = field(init=False)
    _backlogs: PacedFigure[Backlog] = field(default_factory=PacedFigure, init=False)
    _agreements: PacedFigure[dict[str, c.JudgeAgreement]] = field(default_factory=PacedFigure, init=False)

    def __post_init__(self) -> None:
        self.candidates = JudgeCandidates(self.db, self.rules, self.groups)

    # leases

    def lease(self, wanted: c.GroupLeaseIn, now: float) -> c.GroupLease | None:
        """Up to ``limit`` groups in which an episode lacks one of the names, the newest first. None: there is nothing
        to judge.

        A judge that is slower than the agents would else only score what is too old to train on.
        """
        names = list(dict.fromkeys(wanted.names))
        lease, until = uuid4().hex, now + wanted.seconds
        wanted = wanted.model_copy(update={"singles": False}) if wanted.groups else wanted
        with self.db.write(serial=wanted.singles) as tx:
            if wanted.singles:
                self._open_windows(tx, names, wanted.limit, now)
            kinds = "'task', 'like'" if wanted.singles else "'task'"
            groups = self._named(tx, wanted, now) if wanted.groups else []
            if not wanted.groups:
                groups = self.candidates.newest(tx, kinds, names, wanted.limit, now)
            if wanted.singles and len(groups) < wanted.limit:
                sql = f"""SELECT id FROM t_groups WHERE kind = 'window' AND state = 'window' AND {FREE_CONDITION}
                    AND {lacks_of("single")}
                    ORDER BY completed DESC, id LIMIT ?{self.db.lock_rows}"""
                groups += [g for (g,) in tx.all(sql, (now, now, names, len(names), wanted.limit - len(groups)))]
            if not groups:
                return None
            tx.run(
                f"UPDATE t_groups SET judge_lease = ?, judge_until = ?, judge_worker = ? WHERE id {IN}",
                (lease, until, wanted.worker, groups),
            )
        with self.db.read() as tx:
            return c.GroupLease(lease=lease, until=until, groups=self._groups(tx, groups, names, wanted.form))

    def _named(self, tx: Tx, wanted: c.GroupLeaseIn, now: float) -> list[str]:
        """Those of the named groups that nobody judges just now."""
        sql = f"""SELECT id FROM t_groups WHERE kind NOT IN ('window', 'words') AND n > 0
            AND (judge_lease IS NULL OR judge_until < ?) AND id {IN} ORDER BY id LIMIT ?{self.db.lock_rows}"""
        return [group for (group,) in tx.all(sql, (now, wanted.groups, wanted.limit))]

    def release(self, tx: Tx, worker: str) -> int:
        """What a worker had leased is free at once. → Groups released."""
        sql = "UPDATE t_groups SET judge_lease = NULL, judge_until = NULL, judge_worker = NULL WHERE judge_worker = ?"
        return tx.run(sql, (worker,))

    def _open_windows(self, tx: Tx, names: Sequence[str], limit: int, now: float) -> None:
        """A window for each of the latest ungrouped done episodes that lack a name, have none yet, and will not be in a
        group.

        Such an episode has nothing to train on, or has waited alone for longer than ``groups.max_age``.
        """
        left = "SELECT id FROM t_groups WHERE state = 'forming' AND n < 2 AND created < ?"
        latest = f"""SELECT {EPISODE_COLUMNS} FROM t_episodes WHERE state = 'done' AND NOT grouped AND calls > 0
            AND error IS NULL
            AND (grp IS NULL OR grp IN ({left})) AND NOT EXISTS
            (SELECT 1 FROM t_groups w WHERE w.kind = 'window' AND w.single = t_episodes.eid)
            ORDER BY ended DESC, eid LIMIT {MAX_SINGLE_EPISODES}"""
        sql = f"""SELECT {EPISODE_COLUMNS} FROM ({latest}) e WHERE {lacks_of("e.eid")}
            ORDER BY ended DESC, eid LIMIT ?"""
        rows = tx.all(sql, (now - self.rules.group_max_age, list(names), len(names), limit))
        tx.insert("t_groups", [window_of(EpisodeRow(*row), now) for row in rows])

    def _groups(self, tx: Tx, groups: Collection[str], names: Sequence[str], form: c.Form = "auto") -> list[c.Group]:
        """Groups as the judge sees them, in the order given."""
        sql = f"SELECT {', '.join(JudgedGroup._fields)} FROM t_groups WHERE id {IN}"
        rows = {r.id: r for r in map(JudgedGroup._make, tx.all(sql, (list(groups),)))}
        members = self.groups.members(tx, [r.id for r in rows.values() if r.kind != "window"])
        shown: dict[str, list[EpisodeRow]] = {g: members[g] for g in rows}
        for group, row in rows.items():
            if row.single is not None:
                single = self.episodes.load(tx, [row.single]).get(row.single)
                shown[group] = [single, *self._alike(tx, single, names)] if single is not None else []
        eps = {e.eid: e for eps in shown.values() for e in eps}
        details = self.episodes.details(
            tx, list(eps.values()), form=form, stays=lambda call: call.outcome != "superseded"
        )
        made = []
        for group in groups:
            row = rows[group]
            episodes = []
            for ep in shown.get(group, ()):
                detail = details[ep.eid]
                context = row.kind == "window" and ep.eid != row.single
                episodes.append(
                    c.GroupEpisode(episode=ep.public(), calls=detail.call_list, rewards=detail.rewards, context=context)
                )
            if episodes:
                fields = {name: value for name, value in row._asdict().items() if name != "single"}
                made.append(c.Group(**fields, episodes=episodes))
        return made

    def _alike(self, tx: Tx, ep: EpisodeRow, names: Sequence[str]) -> list[EpisodeRow]:
        """The most recent scored episodes with the same system prompt and tools."""
        sql = f"""SELECT {EPISODE_COLUMNS} FROM t_episodes e WHERE state = 'done' AND NOT grouped AND key = ?
            AND model = ? AND error IS NULL
            AND substr(alike, 1, {HASH_CHARS}) = ? AND eid <> ? AND NOT {lacks_of("e.eid")} ORDER BY ended DESC,
                eid LIMIT ?"""
        params = (ep.key, ep.model, likeness_of(ep.alike), ep.eid, list(names), len(names), self.rules.window)
        return [EpisodeRow(*r) for r in tx.all(sql, params)]

    def backlog(self, names: Sequence[str], *, singles: bool, now: float) -> c.JudgeBacklog:
        """Complete groups in which an episode lacks one of the names. Windows are not counted: they train nothing."""
        names = list(dict.fromkeys(names))
        kinds = "'task', 'like'" if singles else "'task'"
        found = self._backlogs.get((kinds, *names), lambda: self.candidates.backlog(kinds, names), self.db.stand())
        age = None if found.oldest is None else max(0.0, now - found.oldest)
        return c.JudgeBacklog(groups=found.groups, oldest_seconds=age, parked=found.parked)

    def agreements(self, name: str) -> dict[str, c.JudgeAgreement]:
        """Source → Pearson's correlation of the judge's latest scores of that name with the latest rewards of the
        source, among the newest ``AGREEMENT_REWARDS`` rewards.
        """
        sql = """WITH latest AS (SELECT DISTINCT ON (eid, name, source) eid, name, source, value FROM t_rewards
            WHERE call IS NULL AND seq > (SELECT coalesce(max(seq), 0) - ? FROM t_rewards)
            ORDER BY eid, name, source, seq DESC),
            beside AS (SELECT source, value, max(CASE WHEN source = 'judge' AND name = ? THEN value END)
            OVER (PARTITION BY eid) AS judged FROM latest)
            SELECT source, corr(judged, value), count(*) FROM beside
            WHERE judged IS NOT NULL AND source IN ('agent', 'human') GROUP BY source"""
        with self.db.read() as tx:
            found = tx.all(sql, (AGREEMENT_REWARDS, name))
        return {
            source: c.JudgeAgreement(value=value if value is not None and isfinite(value) else None, pairs=pairs)
            for source, value, pairs in found
        }

    # scores

    def holds(self, group: str, lease: str) -> JudgeLease | None:
        """How the group's lease stands, if scores are taken under this one; None: it is another's by now (409)."""
        with self.db.read() as tx:
            state = self._state(tx, group)
        return state if state is not None and lease in (state.lease, state.last) else None

    def misfit(self, group: str, scores: c.ScoresIn) -> str | None:
        """An episode that is scored and is none of the group's to score. None: there is none."""
        with self.db.read() as tx:
            found = tx.all("SELECT single FROM t_groups WHERE id = ? AND single IS NOT NULL", (group,))
            eids = {eid for (eid,) in found} or {e.eid for e in self.groups.members(tx, [group])[group]}
            ids = {e.id for e in self.episodes.load(tx, list(eids)).values()}
        return next((s.episode for s in scores.scores if s.episode not in ids), None)

    def repeats(self, group: str, scores: c.ScoresIn) -> bool:
        """Whether that is what was posted under this lease before."""
        with self.db.read() as tx:
            found = tx.all("SELECT key, failure FROM t_groups WHERE id = ?", (group,))
            key, failure = found[0] if found else ("-", None)
            eids = list({e.eid for e in self.groups.members(tx, [group])[group]})
            eids += [eid_of(key, s.episode) for s in scores.scores]
            sql = f"SELECT id, name, source, value, reason, meta FROM t_rewards WHERE eid {IN}"
            stored = {name: (*given, load(meta)) for name, *given, meta in tx.all(sql, (eids,))}
            wanted = self._rewards(tx, key, group, scores, 0.0)
        under = {name: given for name, given in stored.items() if name.startswith(f"{scores.lease}/{group}/")}
        asked = {r.id: (r.name, r.source, r.value, r.reason, load(r.meta)) for r in wanted}
        same = scores.failed is None or failure in ("", clean(scores.failed[:FAILURE_LENGTH]))
        return same and under == asked

    def replay(self, tx: Tx, group: str, scores: c.ScoresIn, now: float, *, key: str | None) -> list[RewardRow]:
        """Accepted scores, out of the spool; once for each lease. ``key``: whose group it was. → Rewards to insert."""
        state = self._state(tx, group)
        if state is None:
            return self._rewards(tx, key, group, scores, now, forgotten=True) if key is not None else []
        if state.last == scores.lease:
            return []
        self._settle(tx, group, scores, now, state.attempts)
        return self._rewards(tx, state.key, group, scores, now)

    def _state(self, tx: Tx, group: str) -> JudgeLease | None:
        found = tx.all("SELECT key, judge_lease, judge_last, attempts FROM t_groups WHERE id = ?", (group,))
        return JudgeLease(*found[0]) if found else None

    def _rewards(
        self, tx: Tx, key: str, group: str, scores: c.ScoresIn, now: float, *, forgotten: bool = False
    ) -> list[RewardRow]:
        """``forgotten``: the store was rebuilt and knows neither group nor, perhaps, its episodes."""
        if scores.failed is not None:
            return []
        eids = [eid_of(key or "-", s.episode) for s in scores.scores]
        known = {eid for eid, ep in self.episodes.load(tx, eids).items() if ep.state != "deleted"}
        rows = []
        for eid, score in zip(eids, scores.scores, strict=True):
            if eid in known or forgotten:
                # The id makes a second post under one lease change nothing, also in a store that knows no leases.
                name = f"{scores.lease}/{group}/{score.episode}/{score.name}"
                meta = {**score.meta, "values": score.values} if score.values else score.meta
                given = (score.name, score.source, score.value, clean(score.reason))
                rows.append(RewardRow(name, 0, eid, None, *given, None, dump(meta), now))
        return rows

    def _settle(self, tx: Tx, group: str, scores: c.ScoresIn, now: float, attempts: int) -> None:
        """The lease ends. A failure without ``retry_after`` counts as an attempt, and too many park the group."""
        failed = scores.failed is not None
        if failed and scores.retry_after is None:
            attempts += 1
        parked = failed and attempts >= self.rules.judge_max_attempts
        tx.run(
            """UPDATE t_groups SET judge_lease = NULL, judge_until = NULL, judge_worker = NULL,
            judge_last = ?, attempts = ?, parked = ?, retry_at = ?, failure = ? WHERE id = ?""",
            (
                scores.lease,
                attempts,
                parked,
                now + (scores.retry_after or 0.0),
                clean(scores.failed[:FAILURE_LENGTH]) if scores.failed is not None else None,
                group,
            ),
        )

    # groups

    def parked(self) -> list[c.Group]:
        """Groups that the judge failed at too often, with their episodes."""
        with self.db.read() as tx:
            sql = "SELECT id FROM t_groups WHERE parked AND state <> 'dropped' ORDER BY completed, id"
            groups = [g for (g,) in tx.all(sql)]
            return self._groups(tx, groups, []) if groups else []

    def unpark(self, group: str | None) -> int:
        """Hand a parked group (None: all of them) out again, its failures forgotten. → How many."""
        which, params = ("parked AND id = ?", (group,)) if group is not None else ("parked", ())
        with self.db.write() as tx:
            return tx.run(f"UPDATE t_groups SET parked = FALSE, attempts = 0, retry_at = 0 WHERE {which}", params)
