"""The judge's work: complete groups, and single episodes beside alike scored ones, that lack a reward of some name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple
from uuid import uuid4

from slipstream import contract as c
from slipstream_proxy.store.codec import clean, dump
from slipstream_proxy.store.driver import IN, Driver, Tx
from slipstream_proxy.store.episodes import EpisodeTable
from slipstream_proxy.store.figures import PacedFigure
from slipstream_proxy.store.groups import GroupTable, window_of
from slipstream_proxy.store.judge_candidates import FREE, Backlog, JudgeCandidates, lacks_of
from slipstream_proxy.store.likeness import HASH, likeness_of
from slipstream_proxy.store.memory import Memory
from slipstream_proxy.store.outcomes import OutcomeLog
from slipstream_proxy.store.rewards import RewardTable
from slipstream_proxy.store.rows import EPISODE_COLUMNS, EpisodeRow, RewardRow, eid_of
from slipstream_proxy.store.tallies import TallyTable
from slipstream_proxy.store.values import Rules

AGREEING = 50_000
"""Newest rewards of which the judge's agreement with others is told."""


SINGLES = 1024
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
        with self.db.write(serial=wanted.singles) as tx:
            if wanted.singles:
                self._open_windows(tx, names, wanted.limit, now)
            kinds = "'task', 'like'" if wanted.singles else "'task'"
            groups = self.candidates.newest(tx, kinds, names, wanted.limit, now)
            if wanted.singles and len(groups) < wanted.limit:
                sql = f"""SELECT id FROM t_groups WHERE kind = 'window' AND state = 'window' AND {FREE}
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
            AND (grp IS NULL OR grp IN ({left})) AND NOT EXISTS
            (SELECT 1 FROM t_groups w WHERE w.kind = 'window' AND w.single = t_episodes.eid)
            ORDER BY ended DESC, eid LIMIT {SINGLES}"""
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
            AND model = ?
            AND substr(alike, 1, {HASH}) = ? AND eid <> ? AND NOT {lacks_of("e.eid")} ORDER BY ended DESC,
                eid LIMIT ?"""
        params = (ep.key, ep.model, likeness_of(ep.alike), ep.eid, list(names), len(names), self.rules.window)
        return [EpisodeRow(*r) for r in tx.all(sql, params)]

    def backlog(self, names: Sequence[str], *, singles: bool, now: float) -> c.JudgeBacklog:
        """Complete groups in which an episode lacks one of the names. Windows are not counted: they train nothing."""
        names = list(dict.fromkeys(names))
        kinds = "'task', 'like'" if singles else "'task'"
        found = self._backlogs.get((kinds, *names), lambda: self.candidates.backlog(kinds, names), self.db.stand())
        age = (None if at is None else max(0.0, now - at) for at in (found.oldest, found.newest))
        return c.JudgeBacklog(
            groups=found.groups, oldest_seconds=next(age), newest_seconds=next(age), parked=found.parked
        )

    def agreements(self, name: str) -> dict[str, c.JudgeAgreement]:
        """Source → Pearson's correlation of the judge's latest scores of that name with the latest rewards of the
        source, among the newest ``AGREEING`` rewards.
        """
        sql = """WITH latest AS (SELECT DISTINCT ON (eid, name, source) eid, name, source, value FROM t_rewards
            WHERE call IS NULL AND seq > (SELECT coalesce(max(seq), 0) - ? FROM t_rewards)
            ORDER BY eid, name, source, seq DESC),
            beside AS (SELECT source, value, max(CASE WHEN source = 'judge' AND name = ? THEN value END)
            OVER (PARTITION BY eid) AS judged FROM latest)
            SELECT source, corr(judged, value), count(*) FROM beside
            WHERE judged IS NOT NULL AND source IN ('agent', 'human') GROUP BY source"""
        with self.db.read() as tx:
            found = tx.all(sql, (AGREEING, name))
        return {
            source: c.JudgeAgreement(value=value if value is not None and isfinite(value) else None, pairs=pairs)
            for source, value, pairs in found
        }

    # scores

    def score(self, group: str, scores: c.ScoresIn, now: float) -> bool:
        """False: the lease is not this worker's any more (409). Posting twice under one lease changes nothing."""
        with self.db.write() as tx:
            rows = self._accept(tx, group, scores, now)
            if rows is None:
                return False
            scored = {r.eid for r in rows}
            self.memory.drop(scored)
            with self.tallies.around(tx, scored):
                self.rewards.insert(tx, rows)
                eps = self.episodes.load(tx, scored)
                combined = self.rewards.combined(tx, list(eps))
                tx.update("t_episodes", ("eid",), ("reward",), list(combined.items()))
            for eid, ep in eps.items():
                ep.reward = combined[eid]
            self.outcomes.note(tx, eps.values(), now)
            self.groups.mark_ready(tx, {ep.grp for ep in eps.values() if ep.grp}, now)
        return True

    def _accept(self, tx: Tx, group: str, scores: c.ScoresIn, now: float) -> list[RewardRow] | None:
        """Settle the lease. → Rewards to insert; None: refused."""
        state = self._state(tx, group)
        if state is None:
            return None
        if state.last == scores.lease:
            return []
        if state.lease != scores.lease:
            return None
        self._settle(tx, group, scores, now, state.attempts)
        return self._rewards(tx, state.key, group, scores, now)

    def replay(self, tx: Tx, group: str, scores: c.ScoresIn, now: float, *, key: str | None) -> list[RewardRow]:
        """Scores that were accepted before, out of the spool. ``key``: whose group it was. → Rewards to insert."""
        state = self._state(tx, group)
        if state is None:
            return self._rewards(tx, key, group, scores, now, forgotten=True) if key is not None else []
        if state.last != scores.lease:
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
                # The id makes a second post under one lease, and the mutation after the post, change nothing.
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
            judge_last = ?, attempts = ?, parked = ?, retry_at = ? WHERE id = ?""",
            (scores.lease, attempts, parked, now + (scores.retry_after or 0.0), group),
        )

    # groups

    def key_of(self, group: str) -> str | None:
        """Whose group it is; None: there is no such group."""
        with self.db.read() as tx:
            found = tx.all("SELECT key FROM t_groups WHERE id = ?", (group,))
        return found[0][0] if found else None

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
