"""Episodes: found, listed, whole, exported.

By what their calls say (text, outcome, trainable) there is no index: the search looks back for a bounded time, and a
cursor goes on with it. The newest episodes that the other filters want are looked at first, in windows that grow, until
a page is full or the time is over. So a page costs no more where the store holds more.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

from slipstream.contract import (
    REPLAY_OF_TAG,
    SIBLING_TAG,
    CallRecord,
    EpisodeDetail,
    EpisodePage,
    Form,
    Lineage,
    RewardSource,
    Split,
    replay_of,
)
from slipstream_proxy.store.conversation.call_rows import EVERY_CALL, CallList, CallPage, is_whole
from slipstream_proxy.store.conversation.calls import CallTable
from slipstream_proxy.store.conversation.kinds import MAIN_KIND
from slipstream_proxy.store.learning.groups import adapters_by_batch, lineage_of
from slipstream_proxy.store.learning.rewards import RewardTable
from slipstream_proxy.store.tables.driver import IN, Driver, Tx, equal, given
from slipstream_proxy.store.tables.rows import (
    EPISODE_COLUMNS,
    CallRow,
    EpisodeRow,
    clean,
    cursor_of,
    dump,
    eid_of,
    load,
    name_of,
    page_of,
    parse_cursor,
    with_tombstones,
)
from slipstream_proxy.store.tables.schema import DayTables
from slipstream_proxy.store.tables.tallies import own_runs
from slipstream_proxy.store.values import EpisodeFilter, KnownEpisode, Name

FIRST_WINDOW, MAX_WINDOW = 256, 2048
"""Episodes of the first window, and of the largest: what is read at once, before the clock is looked at. While a window
is passed between DuckDB and Python, no other thread runs.
"""
EPISODES_PER_TEXT_CHECK = 64
"""Episodes whose text is read at once."""
MAX_SEARCH_WORDS = 8
_WORD = re.compile(r'"([^"]+)"|(\S+)')
_CALL_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
_STRUCTURE = (
    "role content type text name system user assistant developer tool function tool_calls tool_call_id arguments index"
    " input_text output_text reasoning reasoning_content refusal annotations audio function_call image_url url input"
    " output summary message tool_use tool_result id status completed null true false is_error cache_control ephemeral"
)
"""What stands in the stored JSON beside what was said: a word that may be a part of it is looked for again, in the
texts alone."""
_NOT_SAID = frozenset({"role", "type", "id", "tool_call_id", "call_id", "tool_use_id", "status", "index"})
Where = Callable[[EpisodeFilter], tuple[str, list[object]]]


class Candidate(NamedTuple):
    """An episode that the other filters want."""

    eid: str
    started: float
    last_at: float
    task: str | None
    tags: str


@dataclass(slots=True)
class Found:
    eids: list[str]
    """Newest first."""
    next: str | None
    """Cursor; None: there is nothing further back."""
    searched_to: float | None
    """When the oldest episode that was looked at began; None: all were."""


def words_of(text: str) -> list[str]:
    """What all has to be said: words, and phrases in quotes, in lower case."""
    found = [(phrase or word).lower() for phrase, word in _WORD.findall(text)]
    return list(dict.fromkeys(found))[:MAX_SEARCH_WORDS]


def needs_calls(wanted: EpisodeFilter) -> bool:
    """Whether only an episode's calls can say if it is wanted."""
    asked = (wanted.q, wanted.outcome, wanted.trainable, wanted.kind)
    return any(test is not None for test in asked)


def _written(word: str) -> list[str]:
    """A word as it may stand in stored JSON."""
    return list(dict.fromkeys((dump(clean(word) or "").strip()[1:-1], json.dumps(word)[1:-1].lower())))


def _said(value: object) -> Iterable[str]:
    """The texts of messages."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            if name not in _NOT_SAID or not isinstance(part, str):
                yield from _said(part)
    elif isinstance(value, list):
        for part in value:
            yield from _said(part)


def _labels(c: Candidate) -> str:
    """What an episode is found by besides its messages."""
    return " ".join((name_of(c.eid)[1], c.task or "", *load(c.tags, {}).values())).lower()


class CallSearch:
    def __init__(self, days: DayTables) -> None:
        self.days = days

    def page(self, tx: Tx, wanted: EpisodeFilter, where_of: Where) -> Found:
        """Up to ``wanted.limit`` episodes. It looks back for about ``wanted.patience`` seconds."""
        if wanted.q is not None and _CALL_ID.fullmatch(wanted.q.strip().upper()):
            wanted = self._of_call(tx, wanted, wanted.q.strip())
        until = time.monotonic() + wanted.patience
        found: list[Candidate] = []
        size, cursor = FIRST_WINDOW, wanted.cursor
        while True:
            window = self._window(tx, replace(wanted, cursor=cursor), where_of, size)
            if not window:
                return Found([c.eid for c in found], None, None)
            hits = self._hits(tx, window[:size], wanted, wanted.limit + 1 - len(found), until)
            found += hits.found
            if len(found) > wanted.limit:
                last = found[wanted.limit - 1]
                return Found([c.eid for c in found[: wanted.limit]], cursor_of(last.started, last.eid), last.started)
            if hits.whole and len(window) <= size:
                return Found([c.eid for c in found], None, None)
            cursor = cursor_of(hits.last.started, hits.last.eid)
            if time.monotonic() > until:
                return Found([c.eid for c in found], cursor, hits.last.started)
            size = min(MAX_WINDOW, size * 8)

    def all(self, tx: Tx, wanted: EpisodeFilter, where_of: Where) -> list[str]:
        """Every such episode, newest first."""
        found: list[str] = []
        while True:
            page = self.page(tx, replace(wanted, limit=MAX_WINDOW, patience=60.0), where_of)
            found += page.eids
            if page.next is None:
                return found
            wanted = replace(wanted, cursor=page.next)

    def _of_call(self, tx: Tx, wanted: EpisodeFilter, call: str) -> EpisodeFilter:
        """An id of a call (``x-slipstream-call``) finds its episode at once, in whatever case it was copied."""
        ids = [call.lower(), call.upper()]
        eids = [
            eid
            for table in self.days.tables(tx)
            for (eid,) in tx.all(f"SELECT DISTINCT eid FROM {table} WHERE id {IN}", (ids,))
        ]
        return replace(wanted, q=None, among=eids) if eids else wanted

    def _window(self, tx: Tx, wanted: EpisodeFilter, where_of: Where, size: int) -> list[Candidate]:
        where, params = where_of(wanted)
        sql = f"""SELECT {", ".join(Candidate._fields)} FROM t_episodes WHERE {where}
            ORDER BY started DESC, eid DESC LIMIT ?"""
        return [Candidate._make(row) for row in tx.all(sql, (*params, size + 1))]

    def _hits(self, tx: Tx, window: Sequence[Candidate], wanted: EpisodeFilter, most: int, until: float) -> _Hits:
        words = words_of(wanted.q) if wanted.q is not None else []
        heard = self._heard(tx, window, wanted, words)
        hits = []
        for c in window:
            said = heard.get(c.eid)
            if said is None and (wanted.outcome is not None or wanted.trainable or wanted.kind is not None):
                continue
            outcome, trainable, kind, *spoken = said or (False,) * (3 + len(words))
            if (wanted.outcome is not None and not outcome) or wanted.trainable is (not trainable):
                continue
            if wanted.kind is not None and not kind:
                continue
            missing = [w for s, w in zip(spoken, words, strict=True) if not s]
            # what the labels are made of is looked at first: reading the tags of each episode takes longer
            if missing and any(w not in f"{c.eid} {c.task} {c.tags}".lower() for w in missing):
                continue
            if not missing or all(w in _labels(c) for w in missing):
                hits.append(c)
        last = window[-1]
        if not any(w in _STRUCTURE or not any(map(str.isalpha, w)) for w in words):
            return _Hits(hits[:most], last, whole=True)
        found: list[Candidate] = []
        for i in range(0, len(hits), EPISODES_PER_TEXT_CHECK):
            part = hits[i : i + EPISODES_PER_TEXT_CHECK]
            found += self._verified(tx, part, words)
            if len(found) >= most or time.monotonic() > until:
                return _Hits(found, part[-1], whole=i + EPISODES_PER_TEXT_CHECK >= len(hits) and len(found) < most)
        return _Hits(found, last, whole=True)

    def _heard(
        self, tx: Tx, window: Sequence[Candidate], wanted: EpisodeFilter, words: Sequence[str]
    ) -> dict[str, tuple[bool, ...]]:
        """Episode → (a call has the outcome, one is trainable, one is of the kind, each word stands in one of
        them).
        """
        since, until = min(c.started for c in window), max(c.last_at for c in window)
        is_kind = "strpos(coalesce(extra, ''), ?) " + ("= 0" if wanted.kind == MAIN_KIND else "> 0")
        tests = ["outcome = ?", "trainable", is_kind]
        params = [wanted.outcome or "", '"kind":' if wanted.kind == MAIN_KIND else f'"kind":"{wanted.kind}"']
        for word in words:
            texts = [(column, text) for text in _written(word) for column in ("messages", "reply", "error")]
            tests.append(" OR ".join(f"strpos(lower(coalesce({column}, '')), ?) > 0" for column, _ in texts))
            params += [text for _, text in texts]
        columns = ", ".join(f"bool_or({test})" for test in tests)
        found: dict[str, tuple[bool, ...]] = {}
        for table in self.days.tables(tx, since, until):
            sql = f"SELECT eid, {columns} FROM {table} WHERE eid {IN} AND ts >= ? AND ts <= ? GROUP BY eid"
            for eid, *heard in tx.all(sql, (*params, [c.eid for c in window], since, until)):
                before = found.get(eid, (False,) * len(tests))
                found[eid] = tuple(bool(a or b) for a, b in zip(before, heard, strict=True))
        return found

    def _verified(self, tx: Tx, hits: Sequence[Candidate], words: Sequence[str]) -> list[Candidate]:
        """Those of these in whose texts (and not in the JSON around them) each word stands."""
        said = {c.eid: [_labels(c)] for c in hits}
        since, until = min(c.started for c in hits), max(c.last_at for c in hits)
        for table in self.days.tables(tx, since, until):
            sql = f"SELECT eid, messages, reply, error FROM {table} WHERE eid {IN} AND ts >= ? AND ts <= ?"
            for eid, messages, reply, error in tx.all(sql, (list(said), since, until)):
                said[eid] += [
                    text.lower() for part in (load(messages, []), load(reply, []), error) for text in _said(part)
                ]
        return [c for c in hits if all(any(w in text for text in said[c.eid]) for w in words)]


class _Hits(NamedTuple):
    found: list[Candidate]
    last: Candidate
    """The last one that was looked at."""
    whole: bool
    """Whether the whole window was."""


def matching(eids: Collection[str]) -> tuple[str, list[object]]:
    """A test for ``where_of``: one of these episodes."""
    return f"eid {IN}", [list(eids)]


EPISODES_PER_ORDER_LOOKUP = 2_000
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
        *equal(wanted, "state", "key", "task", "split", "model"),
        ("reward >= ?", wanted.reward_min),
        ("reward <= ?", wanted.reward_max),
        ("started >= ?", wanted.since),
        ("started < ?", wanted.until),
    )
    if wanted.state is None:
        tests.append("state <> 'deleted'")
    tests += own_runs(wanted.split)
    if wanted.failed:
        tests.append("error IS NOT NULL")
    if not wanted.replays:
        tests.append("NOT (split = 'eval' AND left(id, 7) = 'replay-' AND strpos(tags, '\"replay\":') > 0)")
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
        total = self._total(wanted) if wanted.count else None
        return EpisodePage(episodes=[e.public() for e in eps], next=after, total=total)

    def _total(self, wanted: EpisodeFilter) -> int:
        where, params = where_of(replace(wanted, cursor=None))
        with self.db.read() as tx:
            return int(tx.all(f"SELECT count(*) FROM t_episodes WHERE {where}", params)[0][0])

    def get(
        self, key: str | None, episode: str, *, tokens: bool = False, page: CallPage = EVERY_CALL
    ) -> EpisodeDetail | None:
        """One episode with a page of its calls. None: unknown or deleted. Without a key: the newest of that id."""
        with self.db.read() as tx:
            # Ordered here: with an order and a limit DuckDB reads the table and not its index
            # (findings/duckdb-index-serves-one-equality.sh).
            where, name = ("id = ?", episode) if key is None else ("eid = ?", eid_of(key, episode))
            rows = [EpisodeRow(*r) for r in tx.all(f"SELECT {EPISODE_COLUMNS} FROM t_episodes WHERE {where}", (name,))]
            ep = max((r for r in rows if r.state != "deleted"), key=lambda r: r.started, default=None)
            if ep is None:
                return None
            whole = is_whole(page.form, ep.calls)
            # a whole call is put together of earlier ones; a delta stands alone
            found = self.calls.some(tx, ep, 0 if whole else page.first, (page.first if whole else 0) + page.most + 1)
            calls, after = CallList(found).page(page, whole=whole, tokens=tokens)
            return self._details(tx, [ep], {ep.eid: calls})[ep.eid].model_copy(update={"next_call": after})

    def many(self, names: Collection[Name], *, tokens: bool = False, form: Form = "auto") -> dict[Name, EpisodeDetail]:
        """Those of these (key, id) that there are and that are not deleted."""
        with self.db.read() as tx:
            eps = self.load(tx, [eid_of(*name) for name in names]).values()
            there = [e for e in eps if e.state != "deleted"]
            return {(d.key, d.id): d for d in self.details(tx, there, tokens=tokens, form=form).values()}

    def call_ids(self, key: str, episode: str) -> set[str]:
        """Ids of its stored calls; empty where there is no such episode."""
        eid = eid_of(key, episode)
        with self.db.read() as tx:
            tables = self.calls.days.tables_of(tx, list(self.load(tx, [eid]).values()))
            return {row[0] for t in tables for row in tx.all(f"SELECT id FROM {t} WHERE eid = ?", (eid,))}

    def standing(self, names: Collection[Name]) -> dict[Name, KnownEpisode]:
        """What is stored of these episodes, for an import that brings them again."""
        by_eid = {eid_of(*name): name for name in names}
        found: dict[Name, KnownEpisode] = {}
        with self.db.read() as tx:
            eps = self.load(tx, by_eid)
            for eid, ep in eps.items():
                found[by_eid[eid]] = KnownEpisode(ep.task, ep.split, load(ep.tags))
            for table in self.calls.days.tables_of(tx, list(eps.values())):
                for eid, call in tx.all(f"SELECT eid, id FROM {table} WHERE eid {IN}", (list(eps),)):
                    found[by_eid[eid]].calls.add(call)
            sql = f"""SELECT eid, name, value FROM t_rewards
                WHERE source = '{RewardSource.IMPORT}' AND call IS NULL AND eid {IN} ORDER BY seq"""
            for eid, name, value in tx.all(sql, (list(eps),)):
                rewards = found[by_eid[eid]].rewards
                rewards[name] = value, rewards.get(name, (value, 0))[1] + 1
        return found

    def known(self, key: str | None, ids: Collection[str]) -> list[Name]:
        """Those of these episodes that there are, of this key or (None) of any."""
        sql = f"SELECT key, id FROM t_episodes WHERE id {IN} AND state <> 'deleted'"
        with self.db.read() as tx:
            return [(k, i) for k, i in tx.all(sql, (list(ids),)) if key in (None, k)]

    def names(self, wanted: EpisodeFilter) -> list[Name]:
        """(key, id) of every episode that the filter wants, its ``limit`` apart."""
        wanted = replace(wanted, cursor=None)
        where, params = where_of(wanted)
        with self.db.read() as tx:
            if needs_calls(wanted):
                return [name_of(eid) for eid in self.search.all(tx, wanted, where_of)]
            return [(key, name) for key, name in tx.all(f"SELECT key, id FROM t_episodes WHERE {where}", params)]

    def siblings(self, names: Collection[Name]) -> list[Name]:
        """Samples of these episodes' steps beside those that they saw, and runs that a replay played again."""
        sql = "SELECT key, id FROM t_episodes WHERE state <> 'deleted' AND strpos(tags, ?) > 0 AND split ="
        with self.db.read() as tx:
            there = {split for (split,) in tx.all("SELECT DISTINCT split FROM t_episodes")}
            found: list[Name] = []
            for key, episode in names:
                if Split.SIBLING in there:
                    pair = dump({SIBLING_TAG: episode})[1:-1]
                    found += tx.all(f"{sql} 'sibling' AND key = ?", (pair, key))
                if Split.EVAL in there:
                    pair = dump({REPLAY_OF_TAG: replay_of(key, episode)})[1:-1]
                    found += tx.all(f"{sql} 'eval'", (pair,))
            return found

    def sampled(self, model: str, since: float) -> int:
        """Tokens of steps that were sampled once more since then. What the agent saw (number 0) is not among them."""
        sql = """SELECT coalesce(sum(completion_tokens), 0) FROM t_episodes WHERE split = 'sibling' AND model = ?
            AND started >= ? AND id NOT LIKE '%~0~0'"""
        with self.db.read() as tx:
            return int(tx.all(sql, (model, since))[0][0])

    def owners(self, episode: str, most: int = 2) -> list[str]:
        """Keys that have an episode of this id, deleted ones apart, at most ``most`` of them."""
        with self.db.read() as tx:
            sql = "SELECT key FROM t_episodes WHERE id = ? AND state <> 'deleted'"
            return sorted(key for (key,) in tx.all(sql, (episode,)))[:most]

    def has_call(self, key: str, episode: str, call: str) -> bool:
        """Whether the episode has a stored call of this id."""
        eid = eid_of(key, episode)
        with self.db.read() as tx:
            ep = self.load(tx, [eid]).get(eid)
            return ep is not None and self.calls.has(tx, eid, call, ep.started, ep.last_at)

    def export(
        self, wanted: EpisodeFilter, *, tokens: bool = True, form: Form = "auto"
    ) -> Iterator[list[EpisodeDetail]]:
        """All episodes that the filter wants (without its ``limit``), newest first, in parts that fit in memory."""
        wanted = replace(self._settled(wanted), limit=EPISODES_PER_ORDER_LOOKUP)
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

    def _page(self, wanted: EpisodeFilter) -> tuple[Sequence[EpisodeRow], str | None]:
        where, params = where_of(wanted)
        sql = f"SELECT {EPISODE_COLUMNS} FROM t_episodes WHERE {where} ORDER BY started DESC, eid DESC LIMIT ?"
        with self.db.read() as tx:
            eps = [EpisodeRow(*r) for r in tx.all(sql, (*params, wanted.limit + 1))]
        return page_of(eps, wanted.limit, lambda ep: (ep.started, ep.eid))

    # for the other components, in their transaction

    def load(self, tx: Tx, eids: Collection[str]) -> dict[str, EpisodeRow]:
        """Those of these episodes that there are, by the identity asked for; of a forgotten one its tombstone."""
        if not eids:
            return {}
        names = with_tombstones(eids)
        sql = f"SELECT {EPISODE_COLUMNS} FROM t_episodes WHERE eid {IN}"
        return {names[row[0]]: EpisodeRow(*row) for row in tx.all(sql, (list(names),))}

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
