"""The control plane's process: ``python -m slipstream_proxy.control.worker``.

``SLIPSTREAM_CONFIG_JSON`` holds the configuration as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from slipstream.config import Config
from slipstream.log import setup_logging
from slipstream_proxy import cores
from slipstream_proxy.control.app import REQUEST_LINE, make_app
from slipstream_proxy.control.assembly import assemble
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.ingest import CONTROL
from slipstream_proxy.control.retention import Sweeper
from slipstream_proxy.control.spool_reader import Item
from slipstream_proxy.control.store_keeper import StoreKeeper
from slipstream_proxy.records import Mutation
from slipstream_proxy.spool import SpoolWriter
from slipstream_proxy.store.values import RecordedCall

log = logging.getLogger("slipstream_proxy.control.worker")
CONFIG_ENV = "SLIPSTREAM_CONFIG_JSON"
BACKLOG = 4096
"""New connections that wait while the event loop is busy (the system's own limit may be lower)."""
SCORING = ("reward", "scores", "done")
"""Mutations that can change an episode's reward."""


class ControlPlane:
    """``start`` … ``stop``: everything but the signal handling. ``deps.live`` and the app are ready after ``start``."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.deps: Deps
        self.keeper: StoreKeeper
        self.sweeper: Sweeper
        self.runner: web.AppRunner | None = None
        self._writer: SpoolWriter

    async def start(self) -> Deps:
        config = self.config
        for folder in (config.root, config.spool_dir, config.adapters_dir):
            folder.mkdir(parents=True, exist_ok=True)
        durability = "process" if config.proxy.durability == "none" else config.proxy.durability
        self._writer = SpoolWriter(
            config.spool_dir, CONTROL, segment_bytes=config.proxy.segment_bytes, durability=durability
        )
        self.deps = assemble(config, self._writer)
        self.keeper = StoreKeeper(config, self.deps.stores, self.deps.journal, self._committed)
        self.sweeper = Sweeper(self.deps)
        self.deps.health.start()
        await self.keeper.start()
        await self.deps.swapper.start()
        self.deps.gatekeeper.start()
        self.deps.gatekeeper.notify()
        self.sweeper.start()
        self.deps.audit.start()
        self.deps.forgetter.start()
        return self.deps

    async def serve(self) -> None:
        """On the Unix socket, for the owner of its file alone."""
        self.runner = web.AppRunner(
            make_app(self.deps), access_log=None, shutdown_timeout=2.0, max_line_size=REQUEST_LINE
        )
        await self.runner.setup()
        path = self.config.socket
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        mask = os.umask(0o177)
        try:
            await web.UnixSite(self.runner, str(path), backlog=BACKLOG).start()
        finally:
            os.umask(mask)
        log.info("control plane on %s", path)

    async def stop(self) -> None:
        await self.deps.audit.stop()
        await self.sweeper.stop()
        await self.deps.forgetter.stop()
        if self.runner:
            await self.runner.cleanup()
            self.config.socket.unlink(missing_ok=True)
        await self.deps.gatekeeper.stop()
        await self.deps.swapper.stop()
        await self._writer.close()
        await self.keeper.stop()
        await self.deps.health.stop()

    def _committed(self, items: Sequence[Item]) -> None:
        deps = self.deps
        deps.notify()
        deps.feed.committed(items)
        if deps.ingester:
            deps.metrics.commit.observe(deps.ingester.stats.commit_seconds)
        deps.metrics.of_calls.ingested(items)
        if any(_may_score(item) for item in items):
            deps.gatekeeper.notify()


def _may_score(item: Item) -> bool:
    """Whether the gate may see another reward after it."""
    return (isinstance(item, Mutation) and item.op in SCORING) or (isinstance(item, RecordedCall) and item.head.done)


async def run(config: Config) -> None:
    plane = ControlPlane(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await plane.start()
    await plane.serve()
    await stop.wait()
    await plane.stop()


def main() -> None:
    setup_logging()
    config = Config.model_validate_json(os.environ[CONFIG_ENV])
    Path(config.root).mkdir(parents=True, exist_ok=True)
    # DuckDB's own threads would share the core, too
    if config.store.threads == 1 and (core := cores.share_one()) is not None:
        log.info("threads share core %d", core)
    asyncio.run(run(config))


if __name__ == "__main__":
    main()
