"""What is remembered of the episodes' calls: bases for the next one, and the conversation tree, all as hashes.

The least recently used leave the memory first, for a file without a name that ends with this process: an episode whose
next call comes late is read back from there, and nothing of it is put together again.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field

from slipstream_proxy.store.delta import LAST, Known
from slipstream_proxy.store.order import Stamp
from slipstream_proxy.store.spill import Spill
from slipstream_proxy.store.tree import ConversationTree

MEMORY = 64 * 2**20
"""Bytes that are remembered, about."""
DISK = 4 * 2**30
"""Bytes beyond which the file starts again."""


@dataclass(slots=True)
class EpisodeCalls:
    """What is known of one episode's calls. A call's base lies in the same day's table, as a day is dropped whole."""

    days: dict[str, list[Known]] = field(default_factory=lambda: defaultdict(list))
    tree: ConversationTree = field(default_factory=ConversationTree)
    stamps: list[Stamp] = field(default_factory=list)
    """The stamps of its calls by number, if several proxies write to the store."""
    count: int = 0
    """How many calls the episode had: another proxy may have stored more since."""

    def add(self, day: str, call: Known) -> None:
        self.days[day].append(call)
        del self.days[day][:-LAST]

    @property
    def size(self) -> int:
        return self.tree.size + 160 * len(self.stamps) + sum(k.size for known in self.days.values() for k in known)


class KnownCalls:
    def __init__(self, memory: int = MEMORY, disk: int = DISK) -> None:
        self._memory = memory
        self._size = 0
        self._known: OrderedDict[str, EpisodeCalls] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._spill = Spill(disk)

    def get(self, eid: str) -> EpisodeCalls | None:
        """None: not remembered, the store may have some."""
        found = self._known.get(eid)
        if found is not None:
            self._known.move_to_end(eid)
            return found
        spilled = self._spill.take(eid)
        return spilled if isinstance(spilled, EpisodeCalls) else None

    def put(self, eid: str, calls: EpisodeCalls) -> None:
        """Remember an episode, or that it has grown."""
        self._known[eid] = calls
        self._known.move_to_end(eid)
        self._size += calls.size - self._sizes.get(eid, 0)
        self._sizes[eid] = calls.size
        while self._size > self._memory and len(self._known) > 1:
            old, left = self._known.popitem(last=False)
            self._size -= self._sizes.pop(old)
            self._spill.put(old, left)

    def clear(self) -> None:
        self._known.clear()
        self._sizes.clear()
        self._spill.clear()
        self._size = 0
