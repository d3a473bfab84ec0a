"""Groups, batches, calls' tokens, tasks and labels as people look at them.

How far trainer and engine were apart at a token (``GapTable``) is for people, too: it may be lost, is not in the spool,
and only the newest ``MAX_KEPT_TOKENS`` tokens stay.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from pydantic import JsonValue

from slipstream import contract as c
from slipstream.contract import BatchGaps, LabelCase, LabelCases, Reward, TaskRuns, TaskStanding, TaskTable, WorstRun
from slipstream.shared.intervals import difference, mean_interval, wilson
from slipstream_proxy.store.conversation.call_rows import CallList, choices_of
from slipstream_proxy.store.conversation.calls import TOKEN_COLUMNS, CallTable
from slipstream_proxy.store.learning.groups import GroupTable, LineageRow, adapters_of, lineage_of
from slipstream_proxy.store.learning.rewards import OutcomeLog, RewardTable
from slipstream_proxy.store.read.curves import SeenRewards
from slipstream_proxy.store.tables.driver import IN, Driver, Row, Tx, equal, given
from slipstream_proxy.store.tables.rows import (
    BATCH_COLUMNS,
    EPISODE_COLUMNS,
    GROUP_COLUMNS,
    BatchRow,
    CallRow,
    EpisodeRow,
    Floats,
    GroupRow,
    Ids,
    eid_of,
    go_on,
    load,
    name_of,
    page_of,
    same_named,
)
from slipstream_proxy.store.tables.tallies import own_runs

LOOKED_AT = 2000
"""Finished episodes, the newest, among which the most uncertain are looked for."""
UNSCORED_UNCERTAINTY = 0.5
"""Uncertainty of an episode that nobody has scored."""
MIDDLE_UNCERTAINTY = 0.4
"""Uncertainty of a score in the middle of the range."""


def votes_of(reward: Reward) -> list[float]:
    """What each vote of a judge gave."""
    votes = reward.meta.get("values")
    return [float(v) for v in votes if isinstance(v, int | float)] if isinstance(votes, list) else []


def range_of(rewards: Sequence[Reward]) -> tuple[float, float]:
    """The lowest and the highest value that was given."""
    values = [r.value for r in rewards]
    return (min(values), max(values)) if values else (0.0, 1.0)


def uncertainty_of(rewards: Sequence[Reward], low: float, high: float) -> tuple[float, str]:
    """From 0 to 1, and why. ``rewards``: of one episode; ``low``, ``high``: the range of all."""
    whole = {(r.name, r.source): r for r in rewards if r.call is None}
    if not whole:
        return UNSCORED_UNCERTAINTY, "nobody has scored it"
    spread = (high - low) or 1.0
    found = []
    for reward in whole.values():
        votes = votes_of(reward)
        if len(votes) > 1:
            deviation = statistics.pstdev(votes)
            found.append((min(1.0, 2 * deviation / spread), f"the votes differ: {', '.join(f'{v:g}' for v in votes)}"))
        place = (reward.value - low) / spread
        text = f"{reward.source} gave {reward.value:g}, in the middle of {low:g} to {high:g}"
        found.append((MIDDLE_UNCERTAINTY * (1 - abs(2 * place - 1)), text))
    lowest = min(whole.values(), key=lambda r: r.value)
    highest = max(whole.values(), key=lambda r: r.value)
    if lowest.source != highest.source:
        text = f"{highest.source} gave {highest.value:g}, {lowest.source} {lowest.value:g}"
        found.append((min(1.0, (highest.value - lowest.value) / spread), text))
    best = max(found, key=lambda f: f[0])
    return best if best[0] > 0 else (0.0, "all agree")


UNLABELLED_CONDITION = "NOT EXISTS (SELECT 1 FROM t_rewards h WHERE h.eid = t_episodes.eid AND h.source = 'human')"


NOT_BY = """NOT EXISTS (SELECT 1 FROM t_audit a WHERE a.action = 'label' AND a.target = t_episodes.id
    AND coalesce(a.key, '-') = ?)"""


def agreement_of(rows: Collection[Row], owner: str | None) -> c.LabelAgreement | None:
    """Of all labels in order: episode, whose key said it, what was said. ``owner``: whose episodes; None: all."""
    said: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for episode, who, text in rows:
        told = load(text, {})
        if owner in (None, told.get("key")) and isinstance(told.get("value"), int | float):
            said[str(told.get("key")), episode, str(told.get("name"))][who or "-"] = float(told["value"])
    shared = {run: of for run, of in said.items() if len(of) > 1}
    pairs = [abs(a - b) for of in shared.values() for a, b in combinations(of.values(), 2)]
    if not pairs:
        return None
    same = sum(d == 0 for d in pairs) / len(pairs)
    low, high = wilson(same, len(pairs))
    people = {who for of in shared.values() for who in of}
    return c.LabelAgreement(
        runs=len({run[:2] for run in shared}),
        people=len(people),
        pairs=len(pairs),
        same=same,
        low=low,
        high=high,
        distance=statistics.fmean(pairs),
    )


class Saying(NamedTuple):
    """An entry of the audit log that is about an episode."""

    id: str
    at: float
    key: str | None
    name: str | None
    detail: dict[str, JsonValue]

    @property
    def comment(self) -> c.Comment:
        by = self.name or (None if self.key == "-" else self.key)
        return c.Comment(id=self.id, at=self.at, by=by, **{n: self.detail.get(n) for n in ("text", "to")})


SAYINGS_SQL = "SELECT target, id, ts, key, name, data FROM t_audit WHERE action IN ('assign', 'comment')"


def sayings(rows: Collection[Row]) -> dict[str, list[Saying]]:
    """Episode (key/id) → what people said of it, oldest first."""
    found: dict[str, list[Saying]] = defaultdict(list)
    for target, number, at, key, name, text in rows:
        detail = load(text, {})
        found[eid_of(str(detail.get("key")), target)].append(Saying(number, at, key, name, detail))
    return found


def assignee(said: Collection[Saying]) -> str | None:
    """Who is to label it, by the latest word on that."""
    return next((str(s.detail["to"]) or None for s in reversed([*said]) if s.detail.get("to") is not None), None)


class LabelQueue:
    """Which episodes a person's label would tell most about: where votes, sources or nobody agree."""

    def __init__(self, db: Driver, rewards: RewardTable) -> None:
        self.db = db
        self.rewards = rewards

    def edited(self) -> list[str]:
        """Episodes (key/id) with an answer that a person wrote in place of the agent's."""
        sql = """SELECT DISTINCT eid FROM t_rewards WHERE source = 'human' AND strpos(meta, '"edited"') > 0"""
        with self.db.read() as tx:
            return [eid for (eid,) in tx.all(sql)]

    def read(
        self,
        key: str | None,
        task: str | None = None,
        split: str | None = None,
        adapter: str | None = None,
        limit: int = 20,
        second: str | None = None,
        assigned: str | None = None,
    ) -> LabelCases:
        """The most uncertain of the newest finished episodes that no person has labelled. ``second``: those that people
        with other keys than this one have. ``assigned``: those that this person is to label.
        """
        tests, params = given(("key = ?", key), ("task = ?", task), ("split = ?", split), ("adapter = ?", adapter))
        if second is not None:
            tests += [f"NOT {UNLABELLED_CONDITION}", NOT_BY]
            params.append(second)
        tests += [
            "state = 'done'",
            "calls > 0",
            "error IS NULL",
            *own_runs(split),
            *([UNLABELLED_CONDITION] if second is None else []),
        ]
        with self.db.read() as tx:
            people = {eid: assignee(said) for eid, said in sayings(tx.all(f"{SAYINGS_SQL} ORDER BY ts, id")).items()}
            if assigned is not None:
                tests.append(f"eid {IN}")
                params.append([eid for eid, name in people.items() if name and name.lower() == assigned.lower()])
            sql = f"""SELECT {EPISODE_COLUMNS} FROM t_episodes WHERE {" AND ".join(tests)}
                ORDER BY started DESC, eid DESC LIMIT ?"""
            eps = [EpisodeRow(*row) for row in tx.all(sql, (*params, LOOKED_AT))]
            rewards = self.rewards.of(tx, eps)
            labelled = """SELECT count(*) FROM t_episodes WHERE state <> 'deleted'
                AND eid IN (SELECT eid FROM t_rewards WHERE source = 'human')"""
            agreement = _agreement(tx, key)
            ((count,),) = tx.all(labelled if key is None else labelled + " AND key = ?", [] if key is None else [key])
        low, high = range_of([r for of in rewards.values() for r in of])
        ranked = [(*uncertainty_of(rewards[ep.eid], low, high), ep) for ep in eps]
        ranked.sort(key=lambda r: -r[0])  # of equal ones the newest stays first
        cases = [
            LabelCase(
                episode=ep.public(),
                uncertainty=score,
                why=why,
                assigned=people.get(ep.eid),
                rewards=rewards[ep.eid],
            )
            for score, why, ep in ranked[:limit]
        ]
        return LabelCases(cases=cases, looked_at=len(eps), labelled=count, agreement=agreement)

    def comments(self, key: str, episode: str) -> c.Comments:
        with self.db.read() as tx:
            rows = tx.all(f"{SAYINGS_SQL} AND target = ? ORDER BY ts, id", (episode,))
        said = sayings(rows).get(eid_of(key, episode), [])
        return c.Comments(comments=[s.comment for s in said], assigned=assignee(said))

    def agreement(self) -> c.LabelAgreement | None:
        with self.db.read() as tx:
            return _agreement(tx, None)


def _agreement(tx: Tx, owner: str | None) -> c.LabelAgreement | None:
    return agreement_of(tx.all("SELECT target, key, data FROM t_audit WHERE action = 'label' ORDER BY ts, id"), owner)


JUDGING_SOURCES = ("judge", "human")
"""Sources of rewards that are somebody's judgement."""


@dataclass(slots=True)
class GroupFilter:
    """None wants any. ``adapter``: that came of it, or that one of its runs was sampled from."""

    key: str | None = None
    task: str | None = None
    model: str | None = None
    split: str | None = None
    state: str | None = None
    kind: str | None = None
    batch: str | None = None
    adapter: str | None = None
    cursor: str | None = None
    limit: int = 50


@dataclass(slots=True)
class BatchFilter:
    model: str | None = None
    state: str | None = None
    adapter: str | None = None
    step: int | None = None
    cursor: str | None = None
    limit: int = 50


def judgements_of(rewards: Collection[c.Reward]) -> list[c.RunJudgement]:
    """The latest of each name and source first."""
    found = []
    for reward in reversed([r for r in rewards if r.source in JUDGING_SOURCES]):
        meta = {name: value for name, value in reward.meta.items() if name != "values"}
        told = reward.model_dump(include={"name", "source", "value", "reason", "at"})
        found.append(c.RunJudgement(**told, votes=votes_of(reward), meta=meta))
    return found


class GroupPages:
    def __init__(self, db: Driver, groups: GroupTable, rewards: RewardTable) -> None:
        self.db = db
        self.groups = groups
        self.rewards = rewards

    def page(self, wanted: GroupFilter) -> c.GroupPage:
        """The newest first. Raises ``ValueError`` for a cursor that is not ours."""
        where, params = given(
            *equal(wanted, "key", "task", "model", "split", "state", "kind"),
            ("id IN (SELECT grp FROM t_members WHERE batch = ?)", wanted.batch),
        )
        if wanted.kind is None and wanted.state is None:
            where.append("kind NOT IN ('window', 'words')")
        if wanted.adapter is not None:
            where.append(
                """(id IN (SELECT grp FROM t_episodes WHERE grp IS NOT NULL
                AND (adapter = ? OR strpos(adapters, ?) > 0))
                OR batch IN (SELECT id FROM t_batches WHERE adapter = ?))"""
            )
            params += [wanted.adapter, f'"{wanted.adapter}"', wanted.adapter]
        go_on(wanted.cursor, "created", where, params)
        sql = f"""SELECT {GROUP_COLUMNS} FROM t_groups WHERE {" AND ".join(where) or "TRUE"}
            ORDER BY created DESC, id DESC LIMIT ?"""
        with self.db.read() as tx:
            rows = [GroupRow(*r) for r in tx.all(sql, (*params, wanted.limit + 1))]
            shown, after = page_of(rows, wanted.limit, lambda row: (row.created, row.id))
            return c.GroupPage(groups=self._summaries(tx, shown), next=after)

    def get(self, key: str | None, group: str) -> c.GroupDetail | None:
        """One group; None: there is none, or it is another key's."""
        with self.db.read() as tx:
            found = tx.all(f"SELECT {GROUP_COLUMNS} FROM t_groups WHERE id = ?", (group,))
            if not found or key not in (None, found[0][GroupRow._fields.index("key")]):
                return None
            row = GroupRow(*found[0])
            (summary,) = self._summaries(tx, [row])
            batches = self._batches_of(tx, row.id)
            return c.GroupDetail(**dict(summary), runs=self._runs(tx, row), batches=batches)

    def _runs(self, tx: Tx, group: GroupRow) -> list[c.GroupRun]:
        eps = [e for e in self.groups.members(tx, [group.id])[group.id] if e.state != "deleted"]
        rewards = self.rewards.of(tx, eps)
        sql = """SELECT m.eid, m.reward, m.advantage FROM t_members m JOIN t_batches b ON b.id = m.batch
            WHERE m.grp = ? ORDER BY b.state = 'trained', b.created"""
        trained = {eid: (reward, advantage) for eid, reward, advantage in tx.all(sql, (group.id,))}
        runs = []
        for ep in eps:
            reward, advantage = trained.get(ep.eid, (None, None))
            runs.append(
                c.GroupRun(
                    episode=ep.public(),
                    rewards=rewards[ep.eid],
                    judgements=judgements_of(rewards[ep.eid]),
                    trained_reward=reward,
                    advantage=advantage,
                )
            )
        return runs

    def _summaries(self, tx: Tx, rows: Sequence[GroupRow]) -> list[c.GroupSummary]:
        ids = [r.id for r in rows]
        sql = f"""SELECT grp, count(reward), avg(reward), min(reward), max(reward) FROM t_episodes
            WHERE grp {IN} GROUP BY grp"""
        rewards: dict[str, Row] = {grp: tuple(rest) for grp, *rest in tx.all(sql, (ids,))} if ids else {}
        batches = self._batches(tx, [r.batch for r in rows if r.batch])
        made = []
        for r in rows:
            rewarded, mean, low, high = rewards.get(r.id, (0, None, None, None))
            batch = batches.get(r.batch or "")
            made.append(
                c.GroupSummary(
                    **same_named(r, c.GroupSummary),
                    episodes=r.n,
                    rewarded=rewarded,
                    mean=mean,
                    low=low,
                    high=high,
                    step=batch.step if batch else None,
                    adapter=batch.adapter if batch else None,
                )
            )
        return made

    # batches

    def batch_page(self, wanted: BatchFilter) -> c.BatchPage:
        """The newest first. Raises ``ValueError`` for a cursor that is not ours."""
        where, params = given(*equal(wanted, "model", "state", "adapter", "step"))
        go_on(wanted.cursor, "created", where, params)
        sql = f"""SELECT {BATCH_COLUMNS} FROM t_batches WHERE {" AND ".join(where) or "TRUE"}
            ORDER BY created DESC, id DESC LIMIT ?"""
        with self.db.read() as tx:
            rows = [BatchRow(*r) for r in tx.all(sql, (*params, wanted.limit + 1))]
        shown, after = page_of(rows, wanted.limit, lambda row: (row.created, row.id))
        return c.BatchPage(batches=[_public(r) for r in shown], next=after)

    def batch(self, batch: str) -> c.BatchDetail | None:
        """One batch with its episodes; None: there is none."""
        with self.db.read() as tx:
            found = self._batches(tx, [batch]).get(batch)
            if found is None:
                return None
            sql = """SELECT eid, grp, reward, advantage FROM t_members WHERE batch = ? AND eid IN
                (SELECT eid FROM t_episodes WHERE state <> 'deleted') ORDER BY grp, eid"""
            members = tx.all(sql, (batch,))
            if found.adapter is None:
                found = found.model_copy(update={"adapter": next(iter(sorted(adapters_of(tx, [batch]))), None)})
        links = []
        for eid, group, reward, advantage in members:
            key, episode = name_of(eid)
            links.append(c.BatchEpisodeLink(episode=episode, key=key, group=group, reward=reward, advantage=advantage))
        return c.BatchDetail(**dict(found), groups=list(dict.fromkeys(m.group for m in links)), episodes=links)

    def gap(self, step: int) -> tuple[float | None, float | None]:
        """Mean and largest distance of log-probabilities that the trainer told of a step."""
        with self.db.read() as tx:
            sql = "SELECT data FROM t_events WHERE kind = 'step' AND strpos(data, ?) > 0 ORDER BY id DESC LIMIT 20"
            for (text,) in tx.all(sql, (f'"step":{step}',)):
                data = load(text, {})
                if data.get("step") == step:
                    return data.get("logprob_gap"), data.get("logprob_gap_max")
        return None, None

    def _batches(self, tx: Tx, ids: Collection[str]) -> dict[str, c.BatchSummary]:
        if not ids:
            return {}
        sql = f"SELECT {BATCH_COLUMNS} FROM t_batches WHERE id {IN}"
        return {row[0]: _public(BatchRow(*row)) for row in tx.all(sql, (list(ids),))}

    def _batches_of(self, tx: Tx, group: str) -> list[c.BatchSummary]:
        ids = [b for (b,) in tx.all("SELECT DISTINCT batch FROM t_members WHERE grp = ?", (group,))]
        return sorted(self._batches(tx, ids).values(), key=lambda b: b.created)


def _public(row: BatchRow) -> c.BatchSummary:
    return c.BatchSummary.model_validate(row, from_attributes=True)


MAX_KEPT_TOKENS = 2_000_000
"""Tokens of all batches together, two bytes each: the oldest batches beyond that go whole."""
MAX_HALF_PRECISION = 60_000.0
"""A half-precision number holds no more."""


class GapRow(NamedTuple):
    """A row of ``t_gaps``. ``gaps``: little-endian float16, one for each sampled token of the choice."""

    call: str
    choice: int
    eid: str
    batch: str
    gaps: bytes
    ts: float


class GapTable:
    def __init__(self, db: Driver) -> None:
        self.db = db

    def put(self, batch: str, told: BatchGaps, now: float) -> int | None:
        """→ How many choices were kept: those of the batch's own runs. None: the lease is another's."""
        with self.db.write() as tx:
            if not tx.all("SELECT 1 FROM t_batches WHERE id = ? AND lease = ?", (batch, told.lease)):
                return None
            members = {eid for (eid,) in tx.all("SELECT eid FROM t_members WHERE batch = ?", (batch,))}
            rows = {
                (c.call, c.choice): GapRow(c.call, c.choice, eid_of(c.key, c.episode), batch, _packed(c.gaps), now)
                for c in told.calls
            }
            own = [row for row in rows.values() if row.eid in members]
            tx.run(f"DELETE FROM t_gaps WHERE call {IN}", ([row.call for row in own],))
            tx.insert("t_gaps", own)
            self._trim(tx)
        return len(own)

    def _trim(self, tx: Tx) -> None:
        sql = "SELECT batch, sum(octet_length(gaps)) FROM t_gaps GROUP BY batch ORDER BY max(ts) DESC, batch"
        total, old = 0, []
        for batch, size in tx.all(sql):
            total += int(size) // 2
            if total > MAX_KEPT_TOKENS:
                old.append(batch)
        if old:
            tx.run(f"DELETE FROM t_gaps WHERE batch {IN}", (old,))


def gaps_of(tx: Tx, eid: str, call: str) -> dict[int, Floats]:
    """Choice → gap of each sampled token."""
    rows = tx.all("SELECT choice, gaps FROM t_gaps WHERE call = ? AND eid = ?", (call, eid))
    return {choice: np.frombuffer(gaps, "<f2").astype(np.float32) for choice, gaps in rows}


def _packed(gaps: list[float]) -> bytes:
    return np.clip(np.asarray(gaps, dtype=np.float64), -MAX_HALF_PRECISION, MAX_HALF_PRECISION).astype("<f2").tobytes()


@dataclass(slots=True)
class StoredTokens:
    """``choices``: ids and log-probabilities. ``gaps``: choice → trainer's minus engine's. ``trained``: last batch."""

    ep: EpisodeRow
    call: CallRow
    prompt: Ids
    choices: list[tuple[Ids, Floats]]
    gaps: dict[int, Floats]
    trained: LineageRow | None
    step: int | None
    group_state: str | None
    group_cause: str | None


class CallTokenTable:
    """The tokens of one call, without putting the rest of its run together."""

    def __init__(self, db: Driver, calls: CallTable) -> None:
        self.db = db
        self.calls = calls

    def get(self, key: str | None, call: str) -> StoredTokens | None:
        """None: there is no such call, it is another key's, or it is forgotten."""
        with self.db.read() as tx:
            ep = self._episode(tx, call)
            if ep is None or key not in (None, ep.key):
                return None
            calls = CallList(self.calls.rows(tx, [ep], TOKEN_COLUMNS)[ep.eid])
            row = next((r for r in calls.rows if r.id == call), None)
            if row is None:
                return None
            trained = [r for r in lineage_of(tx, [ep.eid])[ep.eid] if r.state == "trained"]
            last = trained[-1] if trained else None
            steps = tx.all("SELECT step FROM t_batches WHERE id = ?", (last.batch,)) if last else []
            groups = tx.all("SELECT state, cause FROM t_groups WHERE id = ?", (ep.grp,)) if ep.grp else []
            state, cause = groups[0] if groups else (None, None)
            gaps = gaps_of(tx, ep.eid, call)
        step = steps[0][0] if steps else None
        return StoredTokens(ep, row, calls.ids(row), choices_of(row), gaps, last, step, state, cause)

    def _episode(self, tx: Tx, call: str) -> EpisodeRow | None:
        for table in reversed(self.calls.days.tables(tx)):
            for (eid,) in tx.all(f"SELECT eid FROM {table} WHERE id = ?", (call,)):
                sql = f"SELECT {EPISODE_COLUMNS} FROM t_episodes WHERE eid = ? AND state <> 'deleted'"
                found = tx.all(sql, (eid,))
                return EpisodeRow(*found[0]) if found else None
        return None


LATEST_RUNS = 50
"""Runs of a task that stand for how it goes now: it need not have one of the newest version."""
WORST_RUNS_SHOWN = 3
MOST_TASKS = 2000


class TaskReport:
    """Each task: how its runs went with the base model and go now, how surely they differ, and its worst runs."""

    def __init__(self, db: Driver) -> None:
        self.db = db

    def read(self, *, key: str | None = None, split: str | None = None, model: str | None = None) -> TaskTable:
        """``key``: whose runs; None: all. Runs of control arms are left out: they are no runs of now."""
        tests, params = given(("key = ?", key), ("split = ?", split), ("model = ?", model))
        where = " AND ".join(["reward IS NOT NULL", "task IS NOT NULL", "state <> 'deleted'", *own_runs(split), *tests])
        runs = f"""SELECT * FROM (SELECT task, model, key, id, tags, started, reward, calls, completion_tokens,
            strpos(adapter, '@') > 0 AS made, row_number() OVER (PARTITION BY task, model, strpos(adapter, '@') > 0
            ORDER BY started DESC) AS age FROM t_episodes WHERE {where} AND adapter IS NOT NULL
            AND (strpos(adapter, '@') = 0 OR arm NOT IN ('control', 'best')))
            a WHERE NOT made OR age <= {LATEST_RUNS}"""
        sums = f"""SELECT task, model, made, count(*), avg(reward), coalesce(stddev_samp(reward), 0), avg(calls),
            avg(completion_tokens), max(tags) FROM ({runs}) r GROUP BY task, model, made"""
        worst = f"""SELECT task, model, key, id, reward FROM (SELECT task, model, key, id, reward, row_number() OVER
            (PARTITION BY task, model ORDER BY made DESC, reward, started DESC) AS place FROM ({runs}) r) w
            WHERE place <= {WORST_RUNS_SHOWN} ORDER BY place"""
        with self.db.read() as tx:
            rows, bad, seen = tx.all(sums, params), tx.all(worst, params), SeenRewards(tx)
        lows: dict[tuple[str, str], list[WorstRun]] = defaultdict(list)
        for task, name, owner, run, reward in bad:
            lows[task, name].append(WorstRun(key=owner, id=run, reward=reward))
        sides: dict[tuple[str, str], dict[bool, TaskRuns]] = defaultdict(dict)
        names: dict[tuple[str, str], str] = {}
        for task, name, made, n, mean, std, calls, tokens, tags in rows:
            low, high = mean_interval(mean, std, n, *seen.of(name))
            told = TaskRuns(n=n, mean=mean, low=low, high=high, calls=float(calls), tokens=float(tokens))
            sides[task, name][bool(made)] = told
            names[task, name] = load(tags, {}).get("task-text") or task
        found = [_standing(at, names[at], of.get(False), of.get(True), lows[at]) for at, of in sides.items()]
        found.sort(key=lambda t: (shown.mean if (shown := t.now or t.base) else 0.0, t.task))
        return TaskTable(tasks=found[:MOST_TASKS], left_out=max(0, len(found) - MOST_TASKS), latest=LATEST_RUNS)


def _standing(
    at: tuple[str, str], name: str, base: TaskRuns | None, now: TaskRuns | None, worst: list[WorstRun]
) -> TaskStanding:
    found = TaskStanding(task=at[0], model=at[1], name=name, base=base, now=now, worst=worst)
    if base is None or now is None:
        return found
    d, low, high = difference((base.mean, base.low, base.high), (now.mean, now.low, now.high))
    return found.model_copy(update={"difference": d, "low": low, "high": high})


COMPARED_RUNS = 200
"""Runs of a version, and of its base model, whose behaviour is compared: the newest."""
SHARE_MEASURES = ("cut_off", "refusals", "tool_errors")
"""Of a run's calls."""
BEHAVIOUR_MEASURES = ("turns", "reply_tokens", "seconds", *SHARE_MEASURES)
MOST_TOOLS = 30
MOST_PAIRS = 5


class BehaviourReport:
    """What a version changed in behaviour: side measures and tools of its runs beside those of the base model."""

    def __init__(self, db: Driver, outcomes: OutcomeLog) -> None:
        self.db = db
        self.outcomes = outcomes

    def read(
        self, adapter: str, base: str, *, key: str | None = None, split: str | None = None, task: str | None = None
    ) -> c.Behaviour:
        """``key``: whose runs; None: all."""
        tests, params = given(("key = ?", key), ("split = ?", split), ("task = ?", task))
        where = " AND ".join(["state = 'done'", "calls > 0", "error IS NULL", *own_runs(split), *tests])
        of = f"SELECT task FROM t_episodes WHERE {where} AND adapter = ? AND task IS NOT NULL"
        common, names = f"{of} INTERSECT {of}", (*params, adapter, *params, base)
        newest = """SELECT adapter, eid, task FROM (SELECT adapter, eid, task, row_number() OVER
            (PARTITION BY adapter ORDER BY started DESC, eid) AS age FROM t_episodes
            WHERE {} AND adapter IN (?, ?)) e WHERE age <= ? ORDER BY age"""
        with self.db.read() as tx:
            ((tasks,),) = tx.all(f"SELECT count(*) FROM ({common}) t", names)
            if tasks:
                rows = tx.all(
                    newest.format(f"{where} AND task IN ({common})"), (*params, *names, adapter, base, COMPARED_RUNS)
                )
            else:
                rows = tx.all(newest.format(where), (*params, adapter, base, COMPARED_RUNS))
        eids = [eid for _, eid, _ in rows]
        measures, tools = self.outcomes.measures(eids, BEHAVIOUR_MEASURES), self.outcomes.tools(eids)
        called = [name for name, _ in sum(tools.values(), Counter[str]()).most_common(MOST_TOOLS)]
        for eid, of_run in measures.items():
            of_run |= {f"calls of {name}": float(tools[eid][name]) for name in called}
        sides = [[eid for name, eid, _ in rows if name == side] for side in (base, adapter)]
        newest_of: dict[str, dict[str | None, str]] = {base: {}, adapter: {}}
        for name, eid, named in rows:
            newest_of[name].setdefault(named, eid)
        pairs = [
            c.TaskPair(task=named, base=newest_of[base][named], version=eid)
            for named, eid in newest_of[adapter].items()
            if named is not None and named in newest_of[base]
        ]
        changes = []
        for name in (*BEHAVIOUR_MEASURES, *(f"calls of {tool}" for tool in called)):
            before, after = ([(m[name], e) for e in side if name in (m := measures[e])] for side in sides)
            if before and after:
                changes.append(_change(name, before, after))
        changes.sort(key=lambda x: -abs(x.difference) / (x.high - x.low) if x.high > x.low else 0.0)
        return c.Behaviour(
            adapter=adapter, base=base, tasks=tasks, latest=COMPARED_RUNS, changes=changes, pairs=pairs[:MOST_PAIRS]
        )


def _change(name: str, old: list[tuple[float, str]], new: list[tuple[float, str]]) -> c.BehaviourChange:
    top = 1.0 if name in SHARE_MEASURES else max(value for value, _ in (*old, *new))
    sides = []
    for values in ([value for value, _ in old], [value for value, _ in new]):
        mean, std = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
        low, high = mean_interval(mean, std, len(values), 0.0, top)
        sides.append(c.MeasureMean(n=len(values), mean=mean, low=low, high=high))
    base, version = sides
    d, low, high = difference((base.mean, base.low, base.high), (version.mean, version.low, version.high))
    runs = []
    for value, eid in sorted(new, reverse=d >= 0)[:WORST_RUNS_SHOWN]:
        key, episode = name_of(eid)
        runs.append(c.MeasuredRun(key=key, id=episode, value=value))
    return c.BehaviourChange(measure=name, base=base, version=version, difference=d, low=low, high=high, runs=runs)
