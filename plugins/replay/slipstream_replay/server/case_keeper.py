"""Sets of cases as the control plane keeps them."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from slipstream import contract as c
from slipstream.contract import RewardSource
from slipstream_proxy.control.api.plugins import ControlPlugin
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.storage.access import Change, StoreAccess
from slipstream_proxy.store.tables.rows import eid_of
from slipstream_proxy.store.values import EpisodeFilter, Name
from slipstream_replay.cases import json_line

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
    rewards = [r.model_copy(update={"reason": None}) if r.source == RewardSource.JUDGE else r for r in detail.rewards]
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


class KeepsCases(ControlPlugin):
    """Where the routes of sets of cases find them."""

    def __init__(self, deps: Deps, settings: None) -> None:
        super().__init__(deps, settings)
        self.cases = CaseKeeper(deps)
