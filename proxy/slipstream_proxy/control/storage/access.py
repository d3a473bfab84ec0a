"""The store as the control plane's handlers ask it: what it knows, and what it shall keep.

A question ends within a second while the database is away. A change is in the log before it is in the store.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from slipstream import contract as c
from slipstream.config import Config
from slipstream.replay.cases import json_line
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.storage.ingester import Ingester
from slipstream_proxy.control.storage.mutation_log import Mutations
from slipstream_proxy.control.storage.store_handle import RETRY_HEADERS, STORE_WAIT_S, StoreHandle, StoreHealth
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.store.store import Store
from slipstream_proxy.store.tables.driver import is_store_fault
from slipstream_proxy.store.tables.rows import eid_of
from slipstream_proxy.store.values import EpisodeFilter, Name

T = TypeVar("T")
Change = tuple[str, JsonObject]
"""The kind of a mutation and its data."""


def away() -> Problem:
    text = "the store does not answer; calls and rewards are kept in the spool meanwhile"
    return Problem(503, text, fix="ask again; if it lasts, see the proxy's log and the database", headers=RETRY_HEADERS)


def unwritable() -> Problem:
    text = "this cannot be kept now: the spool cannot be written"
    return Problem(503, text, fix="free the disk and send it again", headers=RETRY_HEADERS)


def ignore(task: asyncio.Future[Any]) -> None:
    """As a task's last callback: nobody waits for what it comes to."""
    if not task.cancelled():
        task.exception()


ARRIVING_CALLS_TIMEOUT_S = 1.0
"""Seconds that a look at an episode waits for calls that have ended."""


@dataclass(slots=True)
class StoreAccess:
    config: Config
    stores: StoreHandle
    mutations: Mutations
    health: StoreHealth
    now: Callable[[], float] = field(default=time.time, kw_only=True)

    @property
    def store(self) -> Store:
        """Raises ``Problem`` 503 while it cannot be opened."""
        return self.stores.require()

    @property
    def store_answers(self) -> bool:
        return self.stores.current is not None and self.health.up

    @property
    def ingester(self) -> Ingester | None:
        return self.stores.ingester

    async def ask(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run a store's method in a thread. Raises ``Problem`` 503 within a second if the database is away."""
        return await self.wait_for(in_thread(call, *args, **kwargs))

    async def wait_for(self, asked: Coroutine[None, None, T]) -> T:
        """What the store answers. Raises ``Problem`` 503 within a second if the database is away."""
        if not self.health.up:
            asked.close()
            raise away()
        running = asyncio.ensure_future(asked)
        while not (await asyncio.wait({running}, timeout=STORE_WAIT_S))[0]:
            if not await self.health.check():
                running.add_done_callback(ignore)  # its thread ends with the driver's own time-out
                raise away()
        try:
            return running.result()
        except Exception as e:
            if is_store_fault(e):
                raise away() from e
            raise

    async def arrived(self) -> None:
        """Wait a moment for what this proxy has recorded and the store has not yet."""
        if (ingester := self.stores.ingester) is not None:
            await ingester.arrived(ARRIVING_CALLS_TIMEOUT_S)

    async def mutate(
        self, op: str, data: JsonObject, *, wait: float = 10.0, id: str | None = None, soon: bool = False
    ) -> bool:
        """Accept a change durably. → Whether the store has it already. 503 if it cannot be kept (disk full).

        ``id``, ``soon``: see ``Mutations.put``.
        """
        applied = await self.mutations.put(op, data, wait=wait, id=id, soon=soon)
        if applied is None:
            if op != "audit":  # that is of a change that is made
                self.mutations.refused += 1
                self.mutations.refused_at = self.now()
            raise unwritable()
        return applied

    async def mutate_all(self, changes: Sequence[Change]) -> bool:
        """Accept these, in this order. The last one's commit is waited for, which comes after the others'. → Whether
        the store has it.
        """
        last = len(changes) - 1
        puts = [self.mutate(op, data, wait=10.0 if n == last else 0) for n, (op, data) in enumerate(changes)]
        done = await asyncio.gather(*puts)
        return not done or done[-1]


LOOKED_AT = 20_000
"""Episodes among which a request takes its sample."""
EPISODES_PER_COPY = 50
"""Episodes that are copied together."""
MAX_COPY_CHARS = 32 * 2**20
"""Characters of one copy's JSON."""


def rank(key: str, episode: str) -> str:
    """A place in an order that has nothing to do with what an episode is."""
    return hashlib.sha256(eid_of(key, episode).encode("utf-8", "surrogatepass")).hexdigest()


def sample(episodes: Sequence[c.Episode], count: int, by: str | None) -> list[c.Episode]:
    """At most ``count``, from every stratum as many as from the others while it lasts. The same episodes give the same
    sample. ``by``: the tag whose values are the strata; None: tasks are.
    """
    strata: dict[str, list[tuple[str, c.Episode]]] = defaultdict(list)
    for e in episodes:
        strata[(e.task if by is None else e.tags.get(by)) or ""].append((rank(e.key, e.id), e))
    ranked = [
        (place, mark, e)
        for one in strata.values()
        for place, (mark, e) in enumerate(sorted(one, key=lambda pair: pair[0]))
    ]
    return [e for _, _, e in sorted(ranked, key=lambda r: r[:2])[:count]]


def case_change(detail: c.EpisodeDetail) -> Change:
    """Without the set, and without what a judge noted: it may quote a run that is forgotten later. As text: a
    transcript may hold numbers and letters that the spool's JSON has no way to write.
    """
    rewards = [r.model_copy(update={"reason": None}) if r.source == "judge" else r for r in detail.rewards]
    text = json_line(detail.model_copy(update={"rewards": rewards}))
    return "case", {"key": detail.key, "episode": detail.id, "text": text}


class CaseKeeper:
    """Sets of cases: which episodes are found, and their copies, each change a version of its own."""

    def __init__(self, access: StoreAccess) -> None:
        self.access = access
        self._one = asyncio.Lock()
        """Sets change one after the other."""

    async def find(self, which: EpisodeFilter, most: int = LOOKED_AT) -> tuple[list[c.Episode], bool]:
        """→ Episodes that have ended and have calls, and whether there are more than were looked at."""
        found: list[c.Episode] = []
        looked = 0
        which = replace(which, state=which.state or "done")
        while True:
            page = await self.access.ask(self.access.store.episodes.page, which)
            looked += len(page.episodes)
            found += [e for e in page.episodes if e.calls]
            if page.next is None or looked >= most:
                return found, page.next is not None
            which = replace(which, cursor=page.next)

    async def copy(self, name: str, names: Sequence[Name], *, instead: bool = False) -> c.CasesChanged:
        """Add episodes as they are now. ``instead``: the set has these alone, and its earlier versions go."""
        access = self.access
        too_large: list[str] = []
        dropped: list[str] = []
        changed = 0
        applied = True
        async with self._one:
            version = await self._next(name)
            if instead:
                await access.mutate("caseset", {"set": name})
            for at in range(0, len(names), EPISODES_PER_COPY):
                some = names[at : at + EPISODES_PER_COPY]
                details = await access.ask(access.store.episodes.many, some, tokens=True, form="deltas")
                whole = [d for d in details.values() if len(d.call_list) == d.calls]
                dropped += [d.id for d in details.values() if len(d.call_list) != d.calls]
                changes = await in_thread(lambda w: [case_change(one) for one in w], whole)
                large = [data["episode"] for _, data in changes if len(data["text"]) > MAX_COPY_CHARS]
                too_large += large
                kept = [one for one in changes if one[1]["episode"] not in large]
                changed += len(kept)
                applied = await self._put(name, kept, version)
            done = await self._after(name, version, None if applied else changed)
            return done.model_copy(update={"too_large": too_large, "dropped": dropped})

    async def write(self, name: str, changes: Sequence[Change]) -> c.CasesChanged:
        async with self._one:
            version = await self._next(name)
            applied = await self._put(name, changes, version)
            return await self._after(name, version, None if applied else len(changes))

    async def drop(self, name: str) -> None:
        async with self._one:
            await self.access.mutate("caseset", {"set": name})

    async def _put(self, name: str, changes: Sequence[Change], version: int) -> bool:
        to = {"set": name, "version": version}
        return await self.access.mutate_all([(op, to | data) for op, data in changes])

    async def known(self, name: str) -> c.CaseSet | None:
        found = await self.access.ask(self.access.store.cases.sets, name)
        return found[0] if found else None

    async def _next(self, name: str) -> int:
        found = await self.known(name)
        return found.version + 1 if found else 1

    async def _after(self, name: str, version: int, coming: int | None) -> c.CasesChanged:
        """The set after a change. ``coming``: so many changes that the store does not have yet."""
        known = await self.known(name)
        there = known is not None and known.version >= version
        changed = coming if coming is not None else 0
        if there and coming is None:
            changed = await self.access.ask(self.access.store.cases.moved, name, version)
        none = c.CaseSet(name=name, version=version if changed else 0, cases=0, changed=self.access.now())
        return c.CasesChanged(set=known or none, changed=changed, coming=coming or 0)
