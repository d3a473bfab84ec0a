"""Pages of groups and batches, with what the judge said of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slipstream import contract as c
from slipstream.contract import RewardSource
from slipstream_proxy.store.learning.groups import GroupTable, adapters_of
from slipstream_proxy.store.learning.rewards import RewardTable
from slipstream_proxy.store.tables.driver import IN, Driver, Row, Tx, equal, given
from slipstream_proxy.store.tables.rows import (
    BATCH_COLUMNS,
    GROUP_COLUMNS,
    BatchRow,
    GroupRow,
    go_on,
    load,
    name_of,
    page_of,
    same_named,
)

JUDGING_SOURCES = (RewardSource.JUDGE, RewardSource.HUMAN)
"""Sources of rewards that are somebody's judgement."""


def votes_of(reward: c.Reward) -> list[float]:
    """What each vote of a judge gave."""
    votes = reward.meta.get("values")
    return [float(v) for v in votes if isinstance(v, int | float)] if isinstance(votes, list) else []


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
