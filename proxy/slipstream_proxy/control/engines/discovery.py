"""Which engines there are now, where ``engine.urls`` has names or files that say so: asked again and again.

An engine that comes gets no call before it has all adapters. One that goes loses its calls to the others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from slipstream.shared.discovery import NotResolved, addresses_of, is_source

log = logging.getLogger(__name__)
DISCOVERY_INTERVAL_S = 2.0
DISCOVERY_TIMEOUT_S = 10.0
EMPTY_PATIENCE_S = 60.0
"""Seconds for which the last addresses stay after a source has none: DNS may be away while the engines serve."""


class EngineDiscovery:
    """``urls``: as ``engine.urls`` has them."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = list(urls)
        self.sources = [url for url in urls if is_source(url)]
        self.errors: dict[str, str] = {}
        """Source → why it says nothing now."""
        self._known: dict[str, list[str]] = {}
        self._heard: dict[str, float] = {}
        self._after = 0.0
        self._other = False
        """``urls`` are others than at the last look."""

    def use(self, urls: Sequence[str]) -> None:
        """From now on ``engine.urls`` are these. What known names and files said stays known."""
        self.urls, self.sources = list(urls), [url for url in urls if is_source(url)]
        self.errors = {source: why for source, why in self.errors.items() if source in self.sources}
        self._after, self._other = 0.0, True

    async def look(self) -> list[str] | None:
        """All addresses. None: there is nothing to look at, or it is too soon."""
        now = time.monotonic()
        if not self._other and (not self.sources or now < self._after):
            return None
        self._after, self._other = now + DISCOVERY_INTERVAL_S, False
        await asyncio.gather(*(self._ask(source) for source in self.sources))
        found: dict[str, None] = {}
        for url in self.urls:
            found.update(dict.fromkeys(self._known.get(url, []) if url in self.sources else [url]))
        return list(found)

    async def _ask(self, source: str) -> None:
        try:
            async with asyncio.timeout(DISCOVERY_TIMEOUT_S):
                found = await asyncio.get_running_loop().run_in_executor(None, addresses_of, source)
            if not found:
                raise NotResolved(f"{source}: it names no engine")
        except (NotResolved, TimeoutError) as e:
            if source not in self.errors:
                log.error("engines cannot be looked up: %s", e or f"{source} does not answer")
            self.errors[source] = str(e) or f"{source} does not answer"
            if time.monotonic() - self._heard.get(source, 0.0) > EMPTY_PATIENCE_S:
                self._known.pop(source, None)
            return
        self.errors.pop(source, None)
        self._heard[source] = time.monotonic()
        if found != self._known.get(source):
            log.info("%s names %d engines: %s", source, len(found), ", ".join(found))
            self._known[source] = found
