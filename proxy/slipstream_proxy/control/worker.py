"""The control plane's process: ``python -m slipstream_proxy.control.worker``, configuration as JSON in ``SLIPSTREAM_CONFIG_JSON``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from slipstream.backoff import Backoff
from slipstream.config import Config
from slipstream.contract import Event
from slipstream.log import setup_logging
from slipstream.operate.process import die_with_parent
from slipstream_proxy.control.adapters import Adapters
from slipstream_proxy.control.app import make_app
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.engines import Engines
from slipstream_proxy.control.ids import new_id
from slipstream_proxy.control.ingest import CONTROL, Ingester
from slipstream_proxy.control.live import Live
from slipstream_proxy.control.metrics import ControlMetrics
from slipstream_proxy.control.mutations import Mutations
from slipstream_proxy.control.reading import Item
from slipstream_proxy.control.swap import Swapper
from slipstream_proxy.control.threads import end, in_thread, settle
from slipstream_proxy.records import Mutation
from slipstream_proxy.spool import SpoolWriter
from slipstream_proxy.store import open_store
from slipstream_proxy.store.protocol import CallRow, Rules, Store

log = logging.getLogger("slipstream_proxy.control.worker")
CONFIG_ENV = "SLIPSTREAM_CONFIG_JSON"
SWEEP_EVERY = 1.0
CATCH_UP = 60.0


def rules_of(config: Config) -> Rules:
    return Rules(
        weights=dict(config.reward.weights), credit=config.reward.credit, group_size=config.groups.size, group_max_age=config.groups.max_age,
        ungrouped=config.groups.ungrouped, idle_timeout=config.episodes.idle_timeout, orphan_ttl=config.reward.orphan_ttl,
        judge_max_attempts=config.judge.max_attempts, window=config.judge.window, min_groups=config.trainer.min_groups,
    )  # fmt: skip


def instance_of(root: Path) -> str:
    """What tells this proxy's spool from those of others on the same PostgreSQL: made once, kept in the data folder."""
    file = root / "instance"
    if not file.is_file():
        fresh = root / f".instance-{os.getpid()}"
        fresh.write_text(new_id())
        fresh.replace(file)
    return file.read_text().strip()


def open_or_none(config: Config) -> Store | None:
    """The store, or None when it cannot be opened even anew: then the spool keeps everything."""
    try:
        return open_store(
            config.store_url, rules_of(config), memory_limit=config.store.memory_limit, threads=config.store.threads,
            instance=instance_of(config.root),
        )  # fmt: skip
    except Exception:
        log.exception("the store %s cannot be opened; calls and rewards are kept in the spool", config.store_url)
        return None


class ControlPlane:
    """``start`` … ``stop``: everything but the signal handling. ``deps.live`` and the app are ready after ``start``."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.deps: Deps
        self.runner: web.AppRunner | None = None
        self._writer: SpoolWriter
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> Deps:
        config = self.config
        for folder in (config.root, config.spool_dir, config.adapters_dir):
            folder.mkdir(parents=True, exist_ok=True)
        metrics = ControlMetrics()
        store = await in_thread(open_or_none, config)
        durability = "process" if config.proxy.durability == "none" else config.proxy.durability
        self._writer = SpoolWriter(
            config.spool_dir, CONTROL, segment_bytes=config.proxy.segment_bytes, durability=durability
        )
        ingester = Ingester(config.spool_dir, store, on_commit=self._committed) if store else None
        mutations = Mutations(self._writer, ingester, new_id)
        adapters = Adapters(config, self._mutate)
        adapters.swap_seconds = metrics.swap_seconds.observe
        live = Live(config.root / "live.json")
        engines = Engines(
            config.engine.urls,
            config.engine.api_key,
            dict,
            lambda: {a.name: adapters.paths(a) for a in adapters.items.values()},
            config.engine.health_interval,
        )
        swapper = Swapper(adapters, engines, live, store)
        engines.wanted = swapper.wanted
        self.deps = Deps(config, mutations, live, adapters, swapper, metrics, store, ingester)
        if ingester and store:
            await self._catch_up(ingester, store)
            await ingester.start()
        await in_thread(adapters.restore, store)
        await swapper.start()
        swapper.rewards_changed.set()
        self._tasks = [asyncio.create_task(self._sweep(), name="sweep")]
        if store is None:
            self._tasks.append(asyncio.create_task(self._reopen(), name="reopen"))
        return self.deps

    async def _catch_up(self, ingester: Ingester, store: Store) -> None:
        """What stands in the spool first: the adapters' states are there, and all of it when the store is new."""
        if store.rebuilt:
            log.warning("the store is new: it is filled again from the spool")
        until = time.monotonic() + CATCH_UP
        try:
            await ingester.load_positions()
            while time.monotonic() < until and await ingester.round():
                pass
        except Exception:
            log.exception("the store takes nothing; the spool keeps everything")

    async def serve(self) -> None:
        """On the Unix socket, for the owner of its file alone."""
        self.runner = web.AppRunner(make_app(self.deps), access_log=None, shutdown_timeout=2.0)
        await self.runner.setup()
        path = self.config.socket
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        mask = os.umask(0o177)
        try:
            await web.UnixSite(self.runner, str(path)).start()
        finally:
            os.umask(mask)
        log.info("control plane on %s", path)

    async def stop(self) -> None:
        await end(self._tasks)
        if self.runner:
            await self.runner.cleanup()
            self.config.socket.unlink(missing_ok=True)
        await self.deps.swapper.stop()
        await self._writer.close()
        if self.deps.ingester:
            await self.deps.ingester.stop()
        await settle()
        if self.deps.store_or_none:
            await in_thread(self.deps.store_or_none.close)

    async def _mutate(self, op: str, data: dict[str, Any]) -> None:
        if await self.deps.mutations.put(op, data, wait=0) is None:
            log.error("a change (%s) is in memory only: the spool cannot be written", op)

    def _committed(self, items: Sequence[Item]) -> None:
        deps = self.deps
        deps.tell()
        stats = deps.ingester.stats if deps.ingester else None
        if stats:
            deps.metrics.commit.observe(stats.commit_seconds)
        deps.metrics.of_calls.ingested(items)
        if any(
            (isinstance(i, Mutation) and i.op in ("reward", "scores", "done"))
            or (isinstance(i, CallRow) and i.head.done)
            for i in items
        ):
            deps.swapper.rewards_changed.set()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY)
            deps = self.deps
            if deps.store_or_none is None:
                continue
            try:
                await deps.ask(deps.store.sweep, deps.now())
                await self._retention()
            except Exception:
                log.exception("the sweep failed")

    async def _retention(self) -> None:
        """Days beyond ``store.keep_days`` are dropped."""
        keep, deps = self.config.store.keep_days, self.deps
        if keep is None or time.monotonic() < getattr(self, "_next_retention", 0.0):
            return
        self._next_retention = time.monotonic() + 600.0
        oldest = time.strftime("%Y-%m-%d", time.gmtime(deps.now() - keep * 86400))
        for day in await deps.ask(deps.store.days):
            if _dashed(day) < oldest:
                if self.config.store.archive:
                    folder = Path(self.config.store.archive).expanduser()
                    folder.mkdir(parents=True, exist_ok=True)
                    await deps.ask(deps.store.archive_day, day, folder)
                rows = await deps.ask(deps.store.drop_day, day)
                await self._mutate(
                    "event",
                    Event(kind="retention", at=time.time(), data={"day": day, "calls": rows}).model_dump(mode="json"),
                )

    async def _reopen(self) -> None:
        """Look again now and then: a disk that was full may have room by now."""
        backoff = Backoff(5.0, 60.0)
        while self.deps.store_or_none is None:
            await backoff.sleep()
            store = await in_thread(open_or_none, self.config)
            if store is None:
                continue
            deps = self.deps
            ingester = Ingester(self.config.spool_dir, store, on_commit=self._committed)
            deps.store_or_none = deps.swapper.store = store
            deps.ingester = deps.mutations.ingester = ingester
            await self._catch_up(ingester, store)
            await ingester.start()
            known = dict(deps.adapters.items)
            await in_thread(deps.adapters.restore, store)
            if not store.shared:
                deps.adapters.items.update(known)
            log.warning("the store is back")


def _dashed(day: str) -> str:
    digits = "".join(ch for ch in day if ch.isdigit())
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:8]}"


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
    # at once, not politely: the store's file is locked as long as this lives, and a new proxy may be waiting for it
    die_with_parent(signal.SIGKILL, os.environ.get("SLIPSTREAM_PARENT"))
    setup_logging()
    config = Config.model_validate_json(os.environ[CONFIG_ENV])
    Path(config.root).mkdir(parents=True, exist_ok=True)
    asyncio.run(run(config))


if __name__ == "__main__":
    main()
