"""Episodes by what their calls say: text, outcome, trainable. There is no index: the search looks back for a bounded
time, and a cursor goes on with it.

The newest episodes that the other filters want are looked at first, in windows that grow, until a page is full or the
time is over. So a page costs no more where the store holds more.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from slipstream_proxy.store.codec import clean, cursor_of, dump, load
from slipstream_proxy.store.days import DayTables
from slipstream_proxy.store.driver import IN, Tx
from slipstream_proxy.store.values import EpisodeFilter

FIRST, MOST = 256, 16_384
"""Episodes of the first window, and of the largest."""
CHUNK = 4096
"""Episodes of whose calls are read at once, before the clock is looked at."""
VERIFIED = 64
"""Episodes whose text is read at once."""
WORDS = 8
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
    return list(dict.fromkeys(found))[:WORDS]


def needs_calls(wanted: EpisodeFilter) -> bool:
    """Whether only an episode's calls can say if it is wanted."""
    return wanted.q is not None or wanted.outcome is not None or wanted.trainable is not None


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
    return " ".join((c.eid.split("/", 1)[1], c.task or "", *load(c.tags, {}).values())).lower()


class CallSearch:
    def __init__(self, days: DayTables) -> None:
        self.days = days

    def page(self, tx: Tx, wanted: EpisodeFilter, where_of: Where) -> Found:
        """Up to ``wanted.limit`` episodes. It looks back for about ``wanted.patience`` seconds."""
        if wanted.q is not None and _CALL_ID.fullmatch(wanted.q.strip().upper()):
            wanted = self._of_call(tx, wanted, wanted.q.strip().upper())
        until = time.monotonic() + wanted.patience
        found: list[Candidate] = []
        size, cursor = FIRST, wanted.cursor
        while True:
            window = self._window(tx, replace(wanted, cursor=cursor), where_of, size)
            for first in range(0, min(size, len(window)), CHUNK):
                chunk = window[first : min(first + CHUNK, size)]
                hits = self._hits(tx, chunk, wanted, wanted.limit + 1 - len(found), until)
                found += hits.found
                if len(found) > wanted.limit:
                    last = found[wanted.limit - 1]
                    return Found(
                        [c.eid for c in found[: wanted.limit]], cursor_of(last.started, last.eid), last.started
                    )
                cursor = cursor_of(hits.last.started, hits.last.eid)
                more = not hits.whole or first + len(chunk) < len(window)
                if more and time.monotonic() > until:
                    return Found([c.eid for c in found], cursor, hits.last.started)
                if not hits.whole:
                    break
            else:
                if len(window) <= size:
                    return Found([c.eid for c in found], None, None)
            size = min(MOST, size * 8)

    def all(self, tx: Tx, wanted: EpisodeFilter, where_of: Where) -> list[str]:
        """Every such episode, newest first."""
        found: list[str] = []
        while True:
            page = self.page(tx, replace(wanted, limit=MOST, patience=60.0), where_of)
            found += page.eids
            if page.next is None:
                return found
            wanted = replace(wanted, cursor=page.next)

    def _of_call(self, tx: Tx, wanted: EpisodeFilter, call: str) -> EpisodeFilter:
        """An id of a call (``x-slipstream-call``) finds its episode at once."""
        eids = [
            eid for table in self.days.tables(tx) for (eid,) in tx.all(f"SELECT eid FROM {table} WHERE id = ?", (call,))
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
            if said is None and (wanted.outcome is not None or wanted.trainable):
                continue
            outcome, trainable, spoken = (said[0], said[1], said[2:]) if said else (False, False, (False,) * len(words))
            if (wanted.outcome is not None and not outcome) or wanted.trainable is (not trainable):
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
        for i in range(0, len(hits), VERIFIED):
            part = hits[i : i + VERIFIED]
            found += self._verified(tx, part, words)
            if len(found) >= most or time.monotonic() > until:
                return _Hits(found, part[-1], whole=i + VERIFIED >= len(hits) and len(found) < most)
        return _Hits(found, last, whole=True)

    def _heard(
        self, tx: Tx, window: Sequence[Candidate], wanted: EpisodeFilter, words: Sequence[str]
    ) -> dict[str, tuple[bool, ...]]:
        """Episode → (a call has the outcome, one is trainable, each word stands in one of them)."""
        since, until = min(c.started for c in window), max(c.last_at for c in window)
        tests, params = ["outcome = ?", "trainable"], [wanted.outcome or ""]
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
