"""The plug-ins that this process has, and what failed in them: for ``status``, ``GET plugins`` and the metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable

from slipstream import plugins as door
from slipstream.config import Config
from slipstream.contract.plugins import PluginStatus

log = logging.getLogger(__name__)
FAULT_CHARS = 300
"""Characters of a failure's text that are told."""


class PluginBoard:
    """``count`` is told the name of each plug-in that failed."""

    def __init__(self, config: Config, count: Callable[[str], None]) -> None:
        found = door.installed()
        used = {plugin.name for plugin in door.used(config.plugins)}
        self._count = count
        self._known = {
            p.name: PluginStatus(name=p.name, text=p.text, enabled=p.name in used) for p in found.found.values()
        }
        for name, why in found.broken.items():
            self._known[name] = PluginStatus(name=name, error=f"it can't be imported: {why}", errors=1)

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
