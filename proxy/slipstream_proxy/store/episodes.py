"""Episodes: rows, pages, details and exports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from slipstream.contract import CallRecord, EpisodeDetail, EpisodePage, Form, Lineage
from slipstream_proxy.store.call_list import CallList, is_whole
from slipstream_proxy.store.call_page import EVERY_CALL, CallPage
from slipstream_proxy.store.calls import CallTable
from slipstream_proxy.store.codec import cursor_of, dump, parse_cursor
from slipstream_proxy.store.driver import IN, Driver, Tx, given
from slipstream_proxy.store.lineage import adapters_by_batch, lineage_of
from slipstream_proxy.store.rewards import RewardTable
from slipstream_proxy.store.rows import EPISODE_COLUMNS, CallRow, EpisodeRow
from slipstream_proxy.store.search import CallSearch, matching, needs_calls
from slipstream_proxy.store.values import EpisodeFilter, Name

CHUNK = 2_000
"""Episodes whose order is looked up together: each look passes over all that is later."""
PART_CALLS, PART_TOKENS = 2_000, 1_000_000
"""Calls and tokens of the episodes that are put together at once."""


class _RankedRow(NamedTuple):
    key: str
    model: str
    task: str
    id: str
    best: int
    worst: int


def where_of(wanted: EpisodeFilter) -> tuple[str, list[object]]:
    """The filter as SQL. Raises ``ValueError`` for a cursor that is not ours."""
    tests, params = given(
        ("state = ?", wanted.state),
        ("key = ?", wanted.key),
        ("task = ?", wanted.task),
        ("split = ?", wanted.split),
        ("model = ?", wanted.model),
        ("reward >= ?", wanted.reward_min),
        ("reward <= ?", wanted.reward_max),
        ("started >= ?", wanted.since),
        ("started < ?", wanted.until),
    )
    if wanted.state is None:
        tests.append("state <> 'deleted'")
    if wanted.adapter is not None:
        tests.append("(adapter = ? OR strpos(adapters, ?) > 0)")
        params += [wanted.adapter, dump(wanted.adapter)]
    for name, tag in wanted.tags.items():
        # Tags are compact JSON, in which this text cannot stand but as that pair.
        tests.append("strpos(tags, ?) > 0")
        params.append(dump({name: tag})[1:-1])
    for name in wanted.tagged:
        tests.append("strpos(tags, ?) > 0")
        params.append(f"{dump(name)}:")
    if wanted.among is not None:
        test, more = matching(wanted.among)
        tests.append(test)
        params += more
    if wanted.cursor:
        started, eid = parse_cursor(wanted.cursor)
        # The pair is what PostgreSQL's index is in order of; the time alone lets DuckDB pass over what is later.
        tests.append("started <= ? AND (started, eid) < (?, ?)")
        params += [started, started, eid]
    return " AND ".join(tests), params


def parts_of(eps: Sequence[EpisodeRow]) -> Iterator[list[EpisodeRow]]:
    """Episodes in parts whose calls and tokens fit a memory."""
    part: list[EpisodeRow] = []
    calls = tokens = 0
    for ep in eps:
        sampled = ep.prompt_tokens + ep.completion_tokens
        # in deltas a run weighs about what its longest call does
        weight = sampled if is_whole("auto", ep.calls) else 2 * sampled // ep.calls
        if part and (calls + ep.calls > PART_CALLS or tokens + weight > PART_TOKENS):
            yield part
            part, calls, tokens = [], 0, 0
        part.append(ep)
        calls, tokens = calls + ep.calls, tokens + weight
    if part:
        yield part


class EpisodeTable:
    def __init__(self, db: Driver, calls: CallTable, rewards: RewardTable) -> None:
        self.db = db
        self.calls = calls
        self.rewards = rewards
        self.search = CallSearch(calls.days)

    # for users

    def page(self, wanted: EpisodeFilter) -> EpisodePage:
        """The newest first. Raises ``ValueError`` for a cursor that is not ours."""
        if needs_calls(wanted):
            with self.db.read() as tx:
                found = self.search.page(tx, wanted, where_of)
                rows = self.load(tx, found.eids)
            shown = [rows[eid].public() for eid in found.eids]
            return EpisodePage(episodes=shown, next=found.next, searched_to=found.searched_to)
        eps, after = self._page(wanted)
        return EpisodePage(episodes=[e.public() for e in eps], next=after)

    def get(
        self, key: str | None, episode: str, *, tokens: bool = False, page: CallPage = EVERY_CALL
    ) -> EpisodeDetail | None:
        """One episode with a page of its calls. None: unknown or deleted. Without a key: the newest of that id."""
        with self.db.read() as tx:
            # Ordered here: with an order and a limit DuckDB reads the table and not its index.
            where, name = ("id = ?", episode) if key is None else ("eid = ?", f"{key}/{episode}")
            rows = [EpisodeRow(*r) for r in tx.all(f"SELECT {EPISODE_COLUMNS} FROM t_episodes WHERE {where}", (name,))]
            ep = max((r for r in rows if r.state != "deleted"), key=lambda r: r.started, default=None)
            if ep is None:
                return None
            whole = is_whole(page.form, ep.calls)
            # a whole call is put together of earlier ones; a delta stands alone
            found = self.calls.some(tx, ep, 0 if whole else page.first, (page.first if whole else 0) + page.most + 1)
            calls, after = CallList(found).page(page, whole=whole, tokens=tokens)
            return self._details(tx, [ep], {ep.eid: calls})[ep.eid].model_copy(update={"next_call": after})

    def many(self, names: Collection[Name]) -> dict[Name, EpisodeDetail]:
        """Those of these (key, id) that there are and that are not deleted, without tokens."""
        with self.db.read() as tx:
            eps = self.load(tx, ["/".join(name) for name in names]).values()
            return {(d.key, d.id): d for d in self.details(tx, [e for e in eps if e.state != "deleted"]).values()}

    def call_ids(self, key: str, episode: str) -> set[str]:
        """Ids of its stored calls; empty where there is no such episode."""
        eid = f"{key}/{episode}"
        with self.db.read() as tx:
            tables = self.calls.days.tables_of(tx, list(self.load(tx, [eid]).values()))
            return {row[0] for t in tables for row in tx.all(f"SELECT id FROM {t} WHERE eid = ?", (eid,))}

    def known(self, key: str | None, ids: Collection[str]) -> list[Name]:
        """Those of these episodes that there are, of this key or (None) of any."""
        sql = f"SELECT key, id FROM t_episodes WHERE id {IN} AND state <> 'deleted'"
        with self.db.read() as tx:
            return [(k, i) for k, i in tx.all(sql, (list(ids),)) if key in (None, k)]

    def names(self, wanted: EpisodeFilter) -> list[Name]:
        """(key, id) of every episode that the filter wants, its ``limit`` apart."""
        where, params = where_of(replace(wanted, cursor=None))
        with self.db.read() as tx:
            return [(key, name) for key, name in tx.all(f"SELECT key, id FROM t_episodes WHERE {where}", params)]

    def owners(self, episode: str, most: int = 2) -> list[str]:
        """Keys that have an episode of this id, deleted ones apart, at most ``most`` of them."""
        with self.db.read() as tx:
            sql = "SELECT key FROM t_episodes WHERE id = ? AND state <> 'deleted'"
            return sorted(key for (key,) in tx.all(sql, (episode,)))[:most]

    def has_call(self, key: str, episode: str, call: str) -> bool:
        """Whether the episode has a stored call of this id."""
        eid = f"{key}/{episode}"
        with self.db.read() as tx:
            tables = self.calls.days.tables_of(tx, list(self.load(tx, [eid]).values()))
            return any(tx.all(f"SELECT 1 FROM {t} WHERE eid = ? AND id = ? LIMIT 1", (eid, call)) for t in tables)

    def export(
        self, wanted: EpisodeFilter, *, tokens: bool = True, form: Form = "auto"
    ) -> Iterator[list[EpisodeDetail]]:
        """All episodes that the filter wants (without its ``limit``), newest first, in parts that fit in memory."""
        wanted = replace(self._settled(wanted), limit=CHUNK)
        while True:
            eps, after = self._page(wanted)
            for part in parts_of(eps):
                with self.db.read() as tx:
                    # some may be forgotten since the page was read
                    there = self._still(tx, part)
                    found = list(self.details(tx, there, tokens=tokens, form=form).values())
                if found:
                    yield found
            if after is None:
                return
            wanted = replace(wanted, cursor=after)

    def _still(self, tx: Tx, eps: Sequence[EpisodeRow]) -> list[EpisodeRow]:
        """Those of these neighbours by time that are not deleted."""
        sql = f"""SELECT {EPISODE_COLUMNS} FROM t_episodes WHERE started >= ? AND started <= ? AND eid {IN}
            AND state <> 'deleted' ORDER BY started DESC, eid DESC"""
        params = (eps[-1].started, eps[0].started, [e.eid for e in eps])
        return [EpisodeRow(*row) for row in tx.all(sql, params)]

    def ranked(self, wanted: EpisodeFilter, most: int = 4) -> Iterator[tuple[list[Name], list[Name]]]:
        """The best and the worst runs of each (key, model, task) whose rewards differ, at most ``most`` of each."""
        where, params = where_of(replace(self._settled(wanted), cursor=None))
        sql = f"""SELECT key, model, task, id, best, worst FROM (SELECT key, model, task, id, reward,
            row_number() OVER (PARTITION BY key, model, task ORDER BY reward DESC, eid) AS best,
            row_number() OVER (PARTITION BY key, model, task ORDER BY reward, eid DESC) AS worst,
            min(reward) OVER (PARTITION BY key, model, task) AS low, max(reward) OVER (PARTITION BY key, model,
            task) AS high
            FROM t_episodes WHERE {where} AND task IS NOT NULL AND reward IS NOT NULL AND calls > 0) q
            WHERE low < high AND (best <= ? OR worst <= ?) ORDER BY key, model, task, best"""
        with self.db.read() as tx:
            rows = [_RankedRow(*r) for r in tx.all(sql, (*params, most, most))]
        for _, group in groupby(rows, key=lambda r: r[:3]):
            runs = list(group)
            best = [(r.key, r.id) for r in runs if r.best <= most]
            worst = [(r.key, r.id) for r in sorted(runs, key=lambda r: r.worst) if r.worst <= most]
            yield best, worst

    def _settled(self, wanted: EpisodeFilter) -> EpisodeFilter:
        """The same filter, without what only calls can say."""
        if not needs_calls(wanted):
            return wanted
        with self.db.read() as tx:
            among = self.search.all(tx, wanted, where_of)
        return replace(wanted, q=None, outcome=None, trainable=None, among=among)

    def _page(self, wanted: EpisodeFilter) -> tuple[list[EpisodeRow], str | None]:
        where, params = where_of(wanted)
        sql = f"SELECT {EPISODE_COLUMNS} FROM t_episodes WHERE {where} ORDER BY started DESC, eid DESC LIMIT ?"
        with self.db.read() as tx:
            eps = [EpisodeRow(*r) for r in tx.all(sql, (*params, wanted.limit + 1))]
        more = len(eps) > wanted.limit
        eps = eps[: wanted.limit]
        return eps, cursor_of(eps[-1].started, eps[-1].eid) if more else None

    # for the other components, in their transaction

    def load(self, tx: Tx, eids: Collection[str]) -> dict[str, EpisodeRow]:
        """Those of these episodes that there are."""
        if not eids:
            return {}
        sql = f"SELECT {EPISODE_COLUMNS} FROM t_episodes WHERE eid {IN}"
        return {row[0]: EpisodeRow(*row) for row in tx.all(sql, (list(eids),))}

    def details(
        self,
        tx: Tx,
        eps: Collection[EpisodeRow],
        *,
        tokens: bool = False,
        form: Form = "auto",
        stays: Callable[[CallRow], bool] | None = None,
    ) -> dict[str, EpisodeDetail]:
        """Episodes with calls (those that ``stay``), rewards, batches and adapters trained on them, in order."""
        rows = self.calls.rows(tx, eps)
        return self._details(
            tx, eps, {e.eid: CallList(rows[e.eid]).records(form, tokens=tokens, stays=stays) for e in eps}
        )

    def _details(
        self, tx: Tx, eps: Collection[EpisodeRow], calls: Mapping[str, list[CallRecord]]
    ) -> dict[str, EpisodeDetail]:
        rewards, lineage = self.rewards.of(tx, eps), lineage_of(tx, [e.eid for e in eps])
        adapters = adapters_by_batch(tx, {r.batch for rows in lineage.values() for r in rows if r.state == "trained"})
        made = {}
        for ep in eps:
            trained = [r for r in lineage[ep.eid] if r.state == "trained"]
            made[ep.eid] = EpisodeDetail.model_construct(
                **dict(ep.public()),
                call_list=calls[ep.eid],
                rewards=rewards[ep.eid],
                advantage=trained[-1].advantage if trained else None,
                batches=[r.batch for r in trained],
                trained_adapters=sorted({a for r in trained for a in adapters[r.batch]}),
                lineage=[
                    Lineage(batch=r.batch, outcome=r.state, adapter=r.adapter, advantage=r.advantage)
                    for r in lineage[ep.eid]
                    if r.state in ("trained", "skipped")
                ],
                next_call=None,
            )
        return made
