"""The plug-ins that this process has, and what failed in them: for ``status``, ``GET plugins`` and the metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from slipstream import plugins as door
from slipstream.config import Config
from slipstream.contract.funnel import FunnelLine
from slipstream.contract.plugins import PluginStatus
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.store.read.status import FunnelCounts

log = logging.getLogger(__name__)
FAULT_CHARS = 300
"""Characters of a failure's text that are told."""


class Teller(Protocol):
    """``ControlPlugin.funnel``."""

    async def __call__(self, counts: FunnelCounts, *, judged: bool) -> Sequence[FunnelLine]: ...


class PluginBoard:
    """``count`` is told the name of each plug-in that failed."""

    def __init__(self, config: Config, count: Callable[[str], None]) -> None:
        found = door.installed()
        used = {plugin.name for plugin in door.used(config.plugins)}
        self._count = count
        self.tellers: dict[str, Teller] = {}
        """By the plug-in's name."""
        self._known = {
            p.name: PluginStatus(name=p.name, text=p.text, enabled=p.name in used) for p in found.found.values()
        }
        for name, why in found.broken.items():
            self._known[name] = PluginStatus(name=name, error=f"it can't be imported: {why}", errors=1)

    async def lines(self, counts: FunnelCounts, *, judged: bool) -> list[FunnelLine]:
        """What they say of what they do, for ``status``. ``judged``: a judge is expected."""
        found: list[FunnelLine] = []
        for name, tell in self.tellers.items():
            try:
                found += await tell(counts, judged=judged)
            except Problem:  # the store is away, which is no fault of theirs
                raise
            except Exception as e:
                self.failed(name, e)
        return found

    def all(self) -> list[PluginStatus]:
        return list(self._known.values())

    def shows(self, name: str, views: dict[str, str]) -> None:
        """It has these views of the page."""
        self._known[name].views = views

    def failed(self, name: str, error: BaseException) -> None:
        log.error("the plug-in %s failed", name, exc_info=error)
        known = self._known[name]
        known.errors += 1
        known.error = f"{type(error).__name__}: {error}"[:FAULT_CHARS]
        self._count(name)
