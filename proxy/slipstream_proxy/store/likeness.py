"""Which untagged episodes do the same task: they form a group of that task, the others a group of likeness.

An untagged episode has two hashes in ``alike``: of its system prompt and tools, and of the first message after them.
Runs whose first message keeps coming back are runs of one task, so they are compared with each other alone. Where first
messages do not come back, groups form from all runs under the same system prompt and tools.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from hashlib import blake2b

from slipstream_proxy.store.codec import dump
from slipstream_proxy.store.driver import Tx
from slipstream_proxy.store.rows import EpisodeRow
from slipstream_proxy.store.values import RecordedCall

HASH = 16
"""Characters of each of the two hashes."""
RECENT = 64
"""Episodes of one likeness that are looked back on."""
LEAST = 3
"""Runs with the same first message, among the recent ones, that make it a task."""
SHARE = 8
"""They must also be one in so many of the recent ones, or their group would take too long to fill."""
KINDS = 1024
"""Likenesses that are kept in memory."""

Kind = tuple[str, str, str, str]
"""Key, model, split and likeness."""


def alike_of(call: RecordedCall) -> str:
    """Both hashes of an episode's first call."""
    messages = call.parsed.messages
    count = 0
    for message in messages:
        if not (isinstance(message, dict) and message.get("role") in ("system", "developer")):
            break
        count += 1
    return _hash([messages[:count], call.parsed.tools]) + _hash(messages[count : count + 1])


def _hash(value: object) -> str:
    return blake2b(dump(value).encode(), digest_size=HASH // 2).hexdigest()


def likeness_of(alike: str) -> str:
    return alike[:HASH]


class RecentRuns:
    """The first messages of the latest untagged episodes, by kind."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Kind, deque[str]] = OrderedDict()

    def recurs(self, tx: Tx, ep: EpisodeRow) -> bool:
        """Count this untagged episode, which has just ended. True: its first message is that of one task."""
        kind = (ep.key, ep.model, ep.split, likeness_of(ep.alike))
        recent = self._kinds.pop(kind, None)
        if recent is None:
            recent = self._load(tx, kind)
        self._kinds[kind] = recent
        if len(self._kinds) > KINDS:
            self._kinds.popitem(last=False)
        recent.append(ep.alike)
        same = Counter(recent)[ep.alike]
        return same >= LEAST and same * SHARE >= len(recent)

    @staticmethod
    def _load(tx: Tx, kind: Kind) -> deque[str]:
        sql = f"""SELECT alike FROM t_episodes WHERE state = 'done' AND NOT grouped AND key = ? AND model = ?
            AND split = ?
            AND substr(alike, 1, {HASH}) = ? ORDER BY ended DESC, eid LIMIT {RECENT}"""
        return deque([alike for (alike,) in tx.all(sql, kind)][::-1], maxlen=RECENT)
