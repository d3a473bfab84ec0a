"""Changes that no record tells the feed of: groups that form or wait, what the gate has read, and what other proxies of
a store did.

Looked at only while somebody follows the feed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream_proxy.store.group_pages import GroupFilter

if TYPE_CHECKING:
    from slipstream_proxy.control.deps import Deps

NEWEST = 50
"""Groups whose state is watched."""


class FeedWatch:
    def __init__(self, deps: Deps) -> None:
        self.deps = deps
        self._states: dict[str, tuple[str, int, int]] | None = None
        """Group → state, episodes, rewarded ones; None: nobody followed a moment ago."""
        self._gate: dict[str, int] | None = None
        """Model → the outcome up to which the gate had read."""

    async def look(self) -> None:
        """Publish what is different since the last look."""
        deps = self.deps
        if not deps.feed.readers:
            self._states = self._gate = None
            return
        self._look_at_gate()
        page = await deps.ask(deps.store.reports.groups.page, GroupFilter(limit=NEWEST))
        before, self._states = self._states, {g.id: (g.state, g.episodes, g.rewarded) for g in page.groups}
        if before is not None:
            for group in page.groups:
                if before.get(group.id) != self._states[group.id]:
                    deps.feed.publish("group", group.key, group=group.id, key=group.key)
        if deps.stores.shared:
            deps.feed.publish("status")

    def _look_at_gate(self) -> None:
        deps, before = self.deps, self._gate
        self._gate = dict(deps.trials.cursors)
        for model, cursor in self._gate.items():
            if before is not None and before.get(model) != cursor:
                deps.feed.publish("adapter", adapter=deps.registry.live(model))
