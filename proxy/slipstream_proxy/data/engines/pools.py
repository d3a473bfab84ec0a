"""Connections to all engines and external upstreams."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from slipstream_proxy.data.wire.upstream import Pool, ReplyMemory

if TYPE_CHECKING:
    from slipstream.settings import EngineConfig
    from slipstream_proxy.data.engines.hangs import HangTable
    from slipstream_proxy.data.engines.models import ModelTarget


class Pools:
    """A pool for each base URL, made when it is needed."""

    def __init__(
        self, engine: EngineConfig, *, connect_timeout: float, timeout: float, hangs: HangTable | None = None
    ) -> None:
        """Timeouts in seconds. ``hangs`` is told which engines are heard."""
        self._hangs = hangs
        self._heard: dict[str, float] = {}
        """When the latest byte came that the table knows of."""
        self._by_url: dict[str, Pool] = {}
        self.memory = ReplyMemory()
        self._engine = engine
        self._keys: dict[str, bytes] = {}
        """Engine → the header line with its own key."""
        self._connect_timeout = connect_timeout
        self._timeout = timeout

    def of(self, url: str) -> Pool:
        found = self._by_url.get(url)
        if found is None:
            found = self._by_url[url] = self.separate(url, self.memory)
            self._heard[url] = found.heard
        return found

    def separate(self, url: str, memory: ReplyMemory | None = None) -> Pool:
        """A pool of its own, for health checks: what it hears are no calls."""
        return Pool(url, connect_timeout=self._connect_timeout, timeout=self._timeout, memory=memory)

    def silent(self, url: str) -> bool:
        """Whether this worker's calls there have brought no byte for as long as a call waits."""
        return self.of(url).silent()

    def engine_key(self, url: str) -> bytes:
        """The header line with an engine's own key; empty: it needs none."""
        found = self._keys.get(url)
        if found is None:
            said = self._engine.headers(url).items()
            found = self._keys[url] = b"".join([f"{name}: {value}\r\n".encode() for name, value in said])
        return found

    def authorization(self, target: ModelTarget, url: str) -> bytes:
        """The header line with the upstream's own key; empty: it needs none."""
        if target.kind != "upstream":
            return self.engine_key(url)
        key = os.environ.get(target.key_env) if target.key_env else None
        return b"Authorization: Bearer %b\r\n" % key.encode() if key else b""

    def sweep(self, now: float) -> None:
        """Once a second: ``now`` is the event loop's time."""
        for url, pool in self._by_url.items():
            if self._hangs is not None and pool.heard > self._heard[url]:
                self._heard[url] = pool.heard
                self._hangs.hear(url, pool.heard)
            pool.sweep(now)

    def close(self) -> None:
        for pool in self._by_url.values():
            pool.close()
