"""The control plane's process: ``python -m slipstream_proxy.control.run.worker``.

It makes the plane's objects and hands each the collaborators that it needs.

``SLIPSTREAM_CONFIG_JSON`` holds the configuration as JSON.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from slipstream.config import CONFIG_ENV, Config
from slipstream.contract import Split
from slipstream.errors import StartError
from slipstream.shared.files import keep_private, open_way
from slipstream.shared.log import setup_logging
from slipstream_proxy.control.adapters.checks import AdapterChecks
from slipstream_proxy.control.adapters.registry import AdapterRegistry
from slipstream_proxy.control.adapters.rehearsal import RehearsalSlot
from slipstream_proxy.control.adapters.rollout import Rollout
from slipstream_proxy.control.api.app import ALL_ROUTES, REQUEST_LINE, make_app
from slipstream_proxy.control.api.plugins import ControlPlugins
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.engines.engine_lease import EngineLease
from slipstream_proxy.control.engines.live import LiveState
from slipstream_proxy.control.engines.pool import EnginePool, OwnAdapters
from slipstream_proxy.control.observe.judge_board import JudgeBoard
from slipstream_proxy.control.observe.metrics import ControlMetrics
from slipstream_proxy.control.run.retention import Sweeper
from slipstream_proxy.control.run.store_keeper import StoreKeeper
from slipstream_proxy.control.shared.threads import end
from slipstream_proxy.control.shared.token_text import TokenTexter
from slipstream_proxy.control.storage.forgetter import Forgetter
from slipstream_proxy.control.storage.ingester import CONTROL_WRITER
from slipstream_proxy.control.storage.mutation_log import Mutations
from slipstream_proxy.control.storage.spool_reader import Item
from slipstream_proxy.control.storage.store_handle import StoreHandle, StoreHealth, probe_of
from slipstream_proxy.log.ids import new_id
from slipstream_proxy.log.records import Mutation
from slipstream_proxy.log.spool import SpoolWriter
from slipstream_proxy.process import cores
from slipstream_proxy.process.garbage import keep_started
from slipstream_proxy.process.parent import NEWER_STORE_EXIT_CODE
from slipstream_proxy.process.settings_file import SettingsNews
from slipstream_proxy.store.tables.schema import NewerSchema
from slipstream_proxy.store.values import RecordedCall

log = logging.getLogger("slipstream_proxy.control.run.worker")
LISTEN_BACKLOG = 4096
"""New connections that wait while the event loop is busy (the system's own limit may be lower)."""
SOCKET_EVERY = 1.0
"""Seconds between looks at whether the socket is still there."""
LOCK_FILE_NAME = "control.lock"
OWN_PATIENCE = 10.0
"""Seconds that a control plane waits for one that is still ending."""
YOUNG_OBJECTS = 5_000
"""New objects until Python looks for garbage among them: 4 ms of a core, in which nothing else runs here."""
TURN_S = 0.001
"""Seconds after which a thread that computes lets another one run. A reward takes a dozen turns, and waits before each
for every thread that searches or ingests.
"""
TOLD_TOGETHER = 32
"""Records of a commit that are told of in one turn of the event loop."""
LEAVE_SIGNAL = signal.SIGUSR1
"""Before SIGTERM: this folder ends for good, so no engine keeps its adapters."""
SCORING_MUTATIONS = ("reward", "scores", "done")
"""Mutations that can change an episode's reward."""


def assemble(config: Config, writer: SpoolWriter) -> Deps:
    """Nothing runs yet, and no store is open."""
    stores = StoreHandle(config.store_url)
    health = StoreHealth(probe_of(config.store_url))
    mutations = Mutations(writer, stores, new_id, health.check)
    metrics = ControlMetrics()
    live = LiveState(config.root / "live.json")
    registry, rehearsals = AdapterRegistry(config), RehearsalSlot()
    checks = AdapterChecks(registry)
    own = OwnAdapters(registry.wanted, registry.paths_of, rehearsals.hidden, checks.unfit)
    engines = EnginePool(config, own, SettingsNews(config))
    lease = EngineLease(engines, live, engines.changed, shared=config.engine.share)
    observe_swap = metrics.swap_seconds.observe
    return Deps(
        config=config,
        stores=stores,
        mutations=mutations,
        live=live,
        rollout=Rollout(registry, checks, rehearsals, engines, lease, live, stores, mutations, observe_swap),
        engines=engines,
        lease=lease,
        metrics=metrics,
        health=health,
        judges=JudgeBoard(config.judge.name, config.judge.names),
        texter=TokenTexter(config),
        forgetter=Forgetter(stores, config.store.archive),
    )


class ControlPlane:
    """``start`` … ``stop``: everything but the signal handling. ``deps.live`` and the app are ready after ``start``."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.deps: Deps
        self.keeper: StoreKeeper
        self.sweeper: Sweeper
        self.plugins: ControlPlugins
        self.runner: web.AppRunner | None = None
        self._site: web.UnixSite | None = None
        self._socket: tuple[int, int, int] | None = None
        """Which file the socket is that this process made."""
        self._watching: asyncio.Task[None] | None = None
        self._writer: SpoolWriter

    async def start(self) -> Deps:
        config = self.config
        open_way(config.adapters_dir)
        keep_private(config.root, config.adapters_dir)
        config.spool_dir.mkdir(parents=True, exist_ok=True)
        durability = "process" if config.proxy.durability == "none" else config.proxy.durability
        self._writer = SpoolWriter(
            config.spool_dir, CONTROL_WRITER, segment_bytes=config.proxy.segment_bytes, durability=durability
        )
        self.deps = assemble(config, self._writer)
        self.plugins = ControlPlugins(self.deps, ALL_ROUTES)
        self.keeper = StoreKeeper(
            config, self.deps.stores, self.deps.rollout.journal, self._committed, self.plugins.extend
        )
        self.sweeper = Sweeper(self.deps)
        self.deps.health.start()
        await self.keeper.start()
        await self.deps.rollout.start()
        self.sweeper.start()
        self.deps.audit.start()
        self.deps.forgetter.start()
        await self.plugins.start()
        return self.deps

    async def serve(self) -> None:
        """On the Unix socket, for the owner of its file alone."""
        self.runner = web.AppRunner(
            make_app(self.deps, self.plugins), access_log=None, shutdown_timeout=2.0, max_line_size=REQUEST_LINE
        )
        await self.runner.setup()
        await self._listen()
        log.info("control plane on %s", self.config.socket)
        self._watching = asyncio.create_task(self._keep_socket(), name="socket")

    async def _listen(self) -> None:
        assert self.runner is not None
        path = self.config.socket
        path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            site = web.UnixSite(self.runner, str(path), backlog=LISTEN_BACKLOG)
            await site.start()
        finally:
            os.umask(mask)
        self._site, self._socket = site, _identity(path)

    async def _keep_socket(self) -> None:
        """The workers find this process by its path alone: if that is gone or another's, listen there again."""
        while True:
            await asyncio.sleep(SOCKET_EVERY)
            if _identity(self.config.socket) == self._socket:
                continue
            log.error("%s was removed or replaced: listening there again", self.config.socket)
            before = self._site
            try:
                await self._listen()
                if before is not None:
                    await before.stop()
            except OSError as e:
                log.error("%s cannot be made: %s", self.config.socket, e)

    async def stop(self) -> None:
        await self.deps.audit.stop()
        await self.sweeper.stop()
        await self.deps.forgetter.stop()
        if self.runner:
            await end([self._watching] if self._watching else [])
            await self.runner.cleanup()
            if _identity(self.config.socket) == self._socket:
                self.config.socket.unlink(missing_ok=True)
        await self.plugins.stop()
        await self.deps.rollout.stop()
        await self._writer.close()
        await self.keeper.stop()
        await self.deps.health.stop()

    async def _committed(self, items: Sequence[Item]) -> None:
        """Tell all that follows the store. Few records at a time: whoever asks meanwhile waits for no more of them."""
        deps = self.deps
        deps.notify()
        if dropped := deps.store.dropped:
            deps.live.forgotten.update((f"{key}/{mark}", None) for key, mark in dropped)
            deps.rollout.publisher.publish()
        deps.schedule.saw(items)
        if deps.ingester:
            deps.metrics.commit.observe(deps.ingester.stats.commit_seconds)
        items = [item for item in items if not _is_sibling(item)]
        told = 0
        try:
            while told + TOLD_TOGETHER < len(items):
                told += TOLD_TOGETHER
                self._tell(items[told - TOLD_TOGETHER : told])
                await asyncio.sleep(0)
        finally:
            self._tell(items[told:])

    def _tell(self, items: Sequence[Item]) -> None:
        self.deps.feed.committed(items)
        self.deps.metrics.of_calls.ingested(items)
        self.plugins.committed(items)
        if any(_may_score(item) for item in items):
            self.deps.rollout.gatekeeper.notify()


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Tells a file from another one that takes its path. None: there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_ctime_ns


async def own(root: Path) -> int:
    """Own the folder's store, spool and socket while the file is open. Raises ``StartError``: another one does."""
    fd = os.open(root / LOCK_FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = asyncio.get_running_loop().time() + OWN_PATIENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except OSError as e:
            if asyncio.get_running_loop().time() > until:
                os.close(fd)
                raise StartError(f"another control plane runs on {root}: this one does not start") from e
        await asyncio.sleep(0.05)


def _is_sibling(item: Item) -> bool:
    """Whether it is no call of an agent."""
    return isinstance(item, RecordedCall) and item.head.split == Split.SIBLING


def _may_score(item: Item) -> bool:
    """Whether the gate may see another reward after it."""
    return (isinstance(item, Mutation) and item.op in SCORING_MUTATIONS) or (
        isinstance(item, RecordedCall) and item.head.done
    )


async def run(config: Config) -> None:
    await own(config.root)
    plane = ControlPlane(config)
    stop, leave = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await plane.start()
    keep_started(YOUNG_OBJECTS)
    sys.setswitchinterval(TURN_S)
    await plane.serve()
    loop.add_signal_handler(LEAVE_SIGNAL, leave.set)
    await stop.wait()
    if leave.is_set():
        await plane.deps.rollout.leave()
    await plane.stop()


def main() -> None:
    setup_logging()
    config = Config.model_validate_json(os.environ[CONFIG_ENV])
    Path(config.root).mkdir(parents=True, exist_ok=True)
    # DuckDB's own threads would share the core, too
    if config.store.threads == 1 and (core := cores.share_one()) is not None:
        log.info("threads share core %d", core)
    try:
        asyncio.run(run(config))
    except StartError as e:
        log.error("%s", e)
        sys.exit(NEWER_STORE_EXIT_CODE if isinstance(e.__cause__, NewerSchema) else 1)


if __name__ == "__main__":
    main()
