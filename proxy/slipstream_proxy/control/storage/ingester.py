"""Spool → store, each record exactly once.

A round reads what every writer has appended since ``store.positions()``, merges it by the time it happened, parses
calls with their dialect and hands 256–512 records to ``store.ingest`` together with the new positions: one transaction,
so a kill at any point repeats or loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.shared.backoff import Backoff, rest
from slipstream_proxy.control.shared.precedence import Aside
from slipstream_proxy.control.shared.threads import end, in_thread
from slipstream_proxy.control.storage.identity import MissingSegments, ahead, missing_segments
from slipstream_proxy.control.storage.spool_eraser import Wanted, blank
from slipstream_proxy.control.storage.spool_reader import (
    LARGE_FOLDER,
    Item,
    LargeRecords,
    Read,
    backlog,
    gather,
    parse,
    stand_of,
    textless,
)
from slipstream_proxy.log.records import Kind, Mutation
from slipstream_proxy.log.segments import list_segments
from slipstream_proxy.store.store import Store
from slipstream_proxy.store.tables.driver import is_store_fault
from slipstream_proxy.store.tables.rows import eid_of
from slipstream_proxy.store.values import Position, RecordedCall

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)

ROUND_RECORDS, MAX_ROUND_RECORDS = 512, 4096
"""Records of a round, and of one when many wait: a round that was full doubles the next one."""
GATHERING_S = 0.5
"""Seconds for which records gather for which nobody waits: a round costs nearly the same with one of them and with
fifty.
"""
BATCH_BYTES = 64 * 2**20
POLL_S, IDLE_POLL_S = 0.05, 0.25
"""Seconds between looks at the spool; and at one to which nothing has been written for a few seconds."""
SNAPSHOT_EVERY = 180.0
CONTROL_WRITER = "control"


@dataclass(slots=True)
class Stats:
    records: int = 0
    commit_seconds: float = 0.0
    unreadable: int = 0
    """Records of which only the head could be stored."""
    skipped: int = 0
    """Records that the store would not take in any form."""
    skipped_calls: int = 0
    """Those of them that are calls."""
    torn: int = 0
    dropped: int = 0
    """Calls and rewards of forgotten episodes."""
    lag_seconds: float = 0.0
    spool_bytes: int = 0
    missing: MissingSegments | None = None
    """What the store has not read and the spool has no more; since the start."""
    broken: str | None = None
    """Why the store takes nothing just now."""

    def skip(self, *, call: bool) -> None:
        self.skipped += 1
        self.skipped_calls += call


def of_a_record(e: Exception) -> bool:
    """Whether the store refuses what it was given; else it takes nothing just now, and nothing may be passed over."""
    names = {kind.__name__ for kind in type(e).__mro__}
    return "OutOfMemoryException" in names or not (isinstance(e, OSError) or is_store_fault(e))


class Ingester:
    """Runs in the control plane. ``on_commit(items)`` is awaited in the event loop after each commit."""

    def __init__(
        self,
        spool_dir: Path,
        store: Store,
        *,
        on_commit: Callable[[Sequence[Item]], Awaitable[None]] | None = None,
        vocabulary: int | None = None,
    ) -> None:
        """``vocabulary``: how many tokens the model has, where that is known."""
        self.dir = spool_dir
        self.large = LargeRecords(spool_dir.with_name(LARGE_FOLDER))
        self.store = store
        self.on_commit = on_commit
        self._vocabulary = vocabulary
        self.stats = Stats()
        self._positions: dict[str, Position] = {}
        self._sure = False
        """The store is where ``_positions`` say: nothing has failed since they were read there."""
        self._batch = ROUND_RECORDS
        self._damaged: set[tuple[str, int]] = set()
        """Writer and number of segments whose damage has been told."""
        self._stand: frozenset[tuple[str, int, int]] = frozenset()
        """The spool's files (``stand_of``) before all that was in them was read."""
        self._wake = asyncio.Event()
        self._snapshot_now = asyncio.Event()
        self._tidying = threading.Lock()
        self.forgotten: set[tuple[str, str]] = set()
        """(key, ``mark_of`` the episode) whose records are to be blanked after the next snapshot."""
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._askers: list[asyncio.Future[None]] = []
        """Who waits for all that was written before (``arrived``)."""
        self._hurry = asyncio.Event()
        """Somebody waits for what is written already. Whoever gave a reward does not."""
        self._full = False
        """The latest round took as much as one may, and more was there perhaps."""
        self._tasks: list[asyncio.Task[None]] = []
        self._lock = asyncio.Lock()

    async def load_positions(self) -> None:
        self._positions = await in_thread(self._compared)
        self._sure = True

    def _compared(self) -> dict[str, Position]:
        """The store's positions, without those that are ahead of the spool: what stands there is read again, and what
        the store has of it changes nothing.
        """
        positions, segments = self.store.positions(), list_segments(self.dir)
        for writer in ahead(segments, positions):
            log.error("the spool of %s is older than the store: all of it is read again", writer)
            del positions[writer]
        fresh = not self.store.positions() if self.store.shared else False  # another instance's store has them
        gaps = [] if fresh else missing_segments(segments, positions)
        if gaps:
            self.stats.missing = MissingSegments.of(gaps)
        return positions

    async def start(self) -> None:
        with contextlib.suppress(Exception):
            await self.load_positions()
        self._tasks = [
            asyncio.create_task(self._run(), name="ingest"),
            asyncio.create_task(self._snapshots(), name="snapshots"),
        ]

    async def stop(self) -> None:
        await end(self._tasks)
        for future in self._waiting.values():
            future.cancel()
        with contextlib.suppress(Exception):
            while await self.round():
                pass

    def hurry(self) -> None:
        """Somebody waits for what is in the spool by now: it does not gather any longer."""
        self._hurry.set()
        self._wake.set()

    def blank(self, names: Collection[tuple[str, str]]) -> None:
        """All of these episodes (key, mark) goes from the spool, behind a snapshot of the store.

        Raises what keeps the snapshot from being taken.
        """
        if names:
            self.forgotten.update(names)
            self.tidy()

    @contextlib.contextmanager
    def segments_kept(self) -> Iterator[None]:
        """No segment goes meanwhile. Blocks."""
        with self._tidying:
            yield

    def expect(self, id: str) -> asyncio.Future[None]:
        """Done when the mutation of this id is in the store. Ask before it is spooled."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[id] = future
        future.add_done_callback(lambda _: self._waiting.pop(id, None))
        return future

    async def arrived(self, wait: float) -> None:
        """Wait until the store has what stands in the spool now, or these seconds are over, or it takes nothing."""
        if self.stats.broken is None and stand_of(self.dir) != self._stand:
            asker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._askers.append(asker)
            self.hurry()
            await asyncio.wait({asker}, timeout=wait)

    async def _run(self) -> None:
        backoff = Backoff(POLL_S, 5.0)
        while True:
            askers, self._askers = self._askers, []
            self._hurry.clear()
            try:
                done = await self.round()
                self.stats.broken = None
                backoff.reset()
            except Exception as e:
                if self.stats.broken is None:
                    log.exception("the store takes nothing; the spool keeps everything")
                self.stats.broken = f"{type(e).__name__}: {e}"
                done = False
                backoff.next()
            if done and self._full:
                self._askers += askers
            else:
                for asker in askers:
                    if not asker.done():
                        asker.set_result(None)
            if done and self._full:
                continue
            await self._rest(backoff)
            if self.stats.broken is None:
                await rest(GATHERING_S, self._hurry)

    async def _rest(self, backoff: Backoff) -> None:
        """Until something is written, or for a while if the store takes nothing. A look at files that are as they were
        costs no thread.
        """
        pause = backoff.pause
        while True:
            self._wake.clear()
            if not self._askers:
                await rest(pause, self._wake)
            if self._askers or self.stats.broken is not None or stand_of(self.dir) != self._stand:
                return
            self.stats.lag_seconds = 0.0
            pause = min(1.1 * pause, IDLE_POLL_S)

    async def round(self) -> bool:
        """Ingest one batch. False: there was nothing."""
        async with self._lock:
            started = time.monotonic()
            stand = stand_of(self.dir)
            if not self._sure:
                await self.load_positions()
            reads, items, positions = await in_thread(self._read)
            if not reads:
                self._stand = stand
                self.stats.lag_seconds = 0.0
                return False
            try:
                await in_thread(self._commit, reads, items, positions)
            except BaseException:
                # Some of it may be in by now. A database that crashed may have lost what it had committed, too
                # (synchronous_commit = off), and does not say where it stands before it is back.
                self._sure = False
                self.stats.lag_seconds = max(0.0, time.time() - reads[0].at)
                raise
            self._positions = positions
            size = sum(len(read.frame.request) + len(read.frame.reply) for read in reads)
            self._full = len(reads) >= self._batch or size > BATCH_BYTES
            if not self._full:
                self._stand = stand
            self._batch = min(2 * self._batch, MAX_ROUND_RECORDS) if len(reads) >= self._batch else ROUND_RECORDS
            self.stats.records += len(reads)
            self.stats.commit_seconds = time.monotonic() - started
            self.stats.lag_seconds = max(0.0, time.time() - reads[-1].at)
        for item in items:
            if isinstance(item, Mutation) and (future := self._waiting.get(item.id)) and not future.done():
                future.set_result(None)
        if self.on_commit:
            await self.on_commit(items)
        return True

    def _read(self) -> tuple[list[Read], list[Item], dict[str, Position]]:
        reads = gather(self.dir, self._positions, self._batch, BATCH_BYTES, self._torn)
        positions = dict(self._positions)
        items: list[Item] = []
        aside = Aside()
        self.store.stand_aside(aside.step)
        for read in reads:
            aside.step()
            positions[read.writer] = read.position
            if read.too_large():
                self._keep_large(read)
            try:
                item, whole = parse(read, self._vocabulary)
            except Exception:
                log.exception("a record of %s at %s is no record: left out", read.writer, read.position)
                self.stats.skip(call=read.frame.kind is Kind.CALL)
                continue
            self.stats.unreadable += not whole
            items.append(item)
        return reads, items, positions

    def _keep_large(self, read: Read) -> None:
        """Its raw bytes are safe before the store has the call, and its segment may go."""
        head = read.frame.head
        with self.store.db.read() as tx:
            known = self.store.episodes.load(tx, [eid_of(str(head.get("key")), str(head.get("episode")))])
        if not any(ep.state == "deleted" for ep in known.values()):
            path = self.large.keep(read.frame)
            log.warning("call %s takes too much memory to be parsed: its raw record is in %s", head["id"], path)

    def _torn(self, writer: str, number: int, path: Path, why: str, offset: int) -> None:
        if (writer, number) not in self._damaged:
            self._damaged.add((writer, number))
            self.stats.torn += 1
            text = "spool: %s is damaged (%s) from byte %d of %d on: what stands before is kept"
            log.error(text, path.name, why, offset, path.stat().st_size)

    def _ingest(self, items: Sequence[Item], positions: dict[str, Position]) -> None:
        self.store.ingest(items, positions)
        dropped = self.store.dropped
        self.stats.dropped += len(dropped)
        self.forgotten.update(dropped)

    def _commit(self, reads: list[Read], items: list[Item], positions: dict[str, Position]) -> None:
        try:
            self._ingest(items, positions)
            return
        except Exception as e:
            # one record that the store cannot take must not stop the rest; a store that takes nothing at all is another
            # matter
            if not of_a_record(e):
                raise
            self.store.ingest([], self.store.positions())
            log.exception("a batch of %d records was refused: trying them one by one", len(items))
        so_far = dict(self.store.positions())
        by_read = iter(items)
        for read in reads:
            so_far[read.writer] = read.position
            try:
                parse(read)
                self._one(next(by_read), so_far)
                continue
            except Exception as e:
                if not of_a_record(e):
                    raise
            self.store.ingest([], so_far)

    def _one(self, item: Item, positions: dict[str, Position]) -> None:
        try:
            self._ingest([item], positions)
            return
        except Exception as e:
            if not of_a_record(e):
                raise
            log.exception("the store refuses a record")
            if not isinstance(item, RecordedCall):
                self.stats.skip(call=False)
                raise
            item.head.extra.pop("usage", None)
            stripped = RecordedCall(item.head, textless(item.head, f"refused by the store: {type(e).__name__}"))
        try:
            self.store.ingest([stripped], positions)
            self.stats.unreadable += 1
        except Exception as e:
            if of_a_record(e):
                self.stats.skip(call=True)
            raise

    def backlog(self) -> tuple[int, float | None]:
        return backlog(self.dir, self._positions)

    async def _snapshots(self) -> None:
        while True:
            await rest(SNAPSHOT_EVERY, self._snapshot_now)
            self._snapshot_now.clear()
            try:
                await in_thread(self.tidy)
            except Exception:
                log.exception("snapshot failed: segments are kept")

    def tidy(self) -> int:
        """Snapshot the store, delete segments that it holds, and blank what is forgotten in others. → How many went."""
        with self._tidying:
            return self._tidy()

    def _tidy(self) -> int:
        wanted, self.forgotten = self.forgotten, set()
        try:
            return self._without(wanted)
        except BaseException:
            self.forgotten |= wanted
            raise

    def _without(self, wanted: Wanted) -> int:
        before = self.store.positions()
        self.store.snapshot()
        gone = 0
        for writer, segments in list_segments(self.dir).items():
            reached = before.get(writer)
            for number, path in segments:
                if reached and number < reached.segment:
                    path.unlink(missing_ok=True)
                    gone += 1
        if wanted:
            blank(self.dir, before, wanted)
            self.large.forget(wanted)
        self.stats.spool_bytes = spool_bytes(self.dir)
        return gone


def spool_bytes(directory: Path) -> int:
    total = 0
    for segments in list_segments(directory).values():
        for _, path in segments:
            with contextlib.suppress(OSError):
                total += path.stat().st_size
    return total
