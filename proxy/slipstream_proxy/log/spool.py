"""The spool: append-only segment files that hold what was answered before the store does.

What one event-loop tick collected leaves in one ``write``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal

from slipstream.shared.files import sync
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.log.records import CallHead, Kind
from slipstream_proxy.log.segments import frame, list_segments

log = logging.getLogger(__name__)

Durability = Literal["power", "process", "none"]
Done = Callable[[bool], None]

_monotonic: Final[Callable[[], float]] = time.monotonic
_writev: Final[Callable[[int, list[bytes]], int]] = os.writev

FLUSH_BYTES = 2**20
"""Written at once, or one frame: all else in the process waits for a write."""
_ENOUGH: Final = 64
"""Frames that are written at once. If they waited for more of their tick, they would leave the processor's cache."""
_AT_ONCE: Final = 1024
"""Pieces of one ``writev``: no more than Linux takes (IOV_MAX)."""


NO_BOOT: Final = "-"
"""The boot id of a machine that has none. Two machines may share this value."""


def _boot() -> str:
    """Tells this start of the machine from others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:  # no Linux, or /proc is hidden
        return NO_BOOT


BOOT_ID: Final = _boot()


class SpoolWriter:
    """Appends frames to ``<dir>/<writer>-<segment>.seg``, a new segment at each start. Belongs to one event loop.

    A frame that cannot be written (disk full) is given up: ``on_lost(frames, error)`` counts it, ``done(False)``
    tells its owner.
    """

    def __init__(
        self,
        directory: Path,
        writer: str,
        *,
        segment_bytes: int = 64 * 2**20,
        durability: Durability = "power",
        on_lost: Callable[[int, BaseException], None] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.dir = directory
        self.writer = writer
        self.segment_bytes = segment_bytes
        self.durability = durability
        self.on_lost = on_lost
        before = list_segments(directory).get(writer, [])
        self.segment = before[-1][0] if before else 0
        self.offset = 0
        self.lost = 0
        self._fd = -1
        self._loop = asyncio.get_running_loop()
        self._frames: list[list[bytes]] = []
        self._dones: list[Done | None] = []
        self._waiting_bytes = 0
        self._scheduled = False
        self._syncing = False
        self._new_file = False
        self._syncer = ThreadPoolExecutor(1, thread_name_prefix=f"spool-{writer}")

    def append(
        self,
        kind: Kind,
        head: JsonObject | CallHead | bytes,
        request: bytes = b"",
        reply: bytes = b"",
        done: Done | None = None,
        *,
        alone: bool = False,
    ) -> None:
        """Queue a frame; ``done(ok)`` is called once it is as durable as asked for. Never raises. ``alone``: no other
        frame can come in this tick, so that nothing waits for one.

        The head gets ``tick`` and ``boot``: when, by a clock that nobody sets. All writers' records have one order by
        it. One that is written already has them.
        """
        if isinstance(head, dict):
            head["tick"] = _monotonic()
            head["boot"] = BOOT_ID
        elif not isinstance(head, bytes):
            head.tick = _monotonic()
            head.boot = BOOT_ID
        try:
            made = frame(kind, head, request, reply)
        except Exception as e:  # a head that is no JSON must not cost the client its reply
            self._give_up([done], e)
            return
        self._frames.append(made)
        self._waiting_bytes += _size(made)
        if self.durability == "none":
            self._dones.append(None)
            if done:
                done(True)
        else:
            self._dones.append(done)
        if self._syncing:
            return
        if alone or len(self._dones) >= _ENOUGH:
            self._flush()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def give_up(self, done: Done | None, error: BaseException) -> None:
        """A record that could not be made: it counts as lost, and its owner is told."""
        self._give_up([done], error)

    async def put(self, kind: Kind, head: JsonObject | CallHead, request: bytes = b"", reply: bytes = b"") -> bool:
        """Append and wait until it is durable."""
        future: asyncio.Future[bool] = self._loop.create_future()
        self.append(kind, head, request, reply, lambda ok: None if future.done() else future.set_result(ok))
        return await future

    def position(self) -> tuple[int, int]:
        """Segment and offset behind the last frame that was written."""
        return self.segment, self.offset

    def _flush(self) -> None:
        self._scheduled = False
        if not self._frames or self._syncing:
            return
        frames, dones, self._frames, self._dones = self._frames, self._dones, [], []
        if self._waiting_bytes <= FLUSH_BYTES:
            self._waiting_bytes = 0
        else:
            count, size = _few(frames)
            self._frames, self._dones = frames[count:], dones[count:]
            frames, dones = frames[:count], dones[:count]
            self._waiting_bytes -= size
        whole, error = self._write(frames)
        if error is not None:
            dones, lost = dones[:whole], dones[whole:]
            self._give_up(lost, error)
        if self.durability == "power" and dones:
            self._syncing = True
            self._syncer.submit(self._sync, self._fd, dones)
            return
        if self._frames and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        _tell(dones, ok=True)

    def _open(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        number = self.segment + 1  # a number that is passed over would look like a segment that is gone
        path = self.dir / f"{self.writer}-{number:08d}.seg"
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            self.segment = number
            raise
        self.segment = number
        self.offset = 0
        self._new_file = True

    def _write(self, frames: list[list[bytes]]) -> tuple[int, OSError | None]:
        """→ How many frames are in the file, and why the others are not."""
        written, pieces = 0, frames[0]
        if len(frames) > 1:
            pieces = [piece for made in frames for piece in made]
        try:
            if self._fd < 0 or self.offset >= self.segment_bytes:
                self._open()
            for at in range(0, len(pieces), _AT_ONCE):
                some = pieces if len(pieces) <= _AT_ONCE else pieces[at : at + _AT_ONCE]
                done = _writev(self._fd, some)
                written += done
                rest = b"".join(some)[done:] if done < _size(some) else b""
                while rest:
                    done = os.write(self._fd, rest)
                    written += done
                    rest = rest[done:]
        except OSError as e:
            whole, size = _whole_frames(frames, written)
            self.offset += size
            if written > size:
                self._cut()
            return whole, e
        self.offset += written
        return len(frames), None

    def _cut(self) -> None:
        """Half a frame would hide what is written behind it. Whole ones stay: a reader may have them already, and goes
        on behind them.
        """
        try:
            os.ftruncate(self._fd, self.offset)
        except OSError:
            self._close_file()

    def _sync(self, fd: int, dones: list[Done | None]) -> None:
        error: BaseException | None = None
        try:
            os.fdatasync(fd)
            if self._new_file:
                self._new_file = False
                sync(self.dir)
        except OSError as e:
            error = e
        try:
            self._loop.call_soon_threadsafe(self._synced, dones, error)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    def _synced(self, dones: list[Done | None], error: BaseException | None) -> None:
        self._syncing = False
        if error is None:
            _tell(dones, ok=True)
        else:
            self._close_file()  # after a failed sync its pages may be gone: go on in a new one
            self._give_up(dones, error)
        self._flush()

    def _give_up(self, dones: list[Done | None], error: BaseException) -> None:
        self.lost += len(dones)
        if self.on_lost:
            self.on_lost(len(dones), error)
        _tell(dones, ok=False)

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    async def close(self) -> None:
        """Write and sync what is queued."""
        while self._frames or self._syncing or self._scheduled:
            self._flush()
            await asyncio.sleep(0.001)
        if self._fd >= 0 and self.durability != "none":
            await self._loop.run_in_executor(self._syncer, os.fdatasync, self._fd)
        self._close_file()
        self._syncer.shutdown(wait=False)


def _size(pieces: list[bytes]) -> int:
    size = 0
    for piece in pieces:  # compiled, this costs less than ``sum`` and ``map``
        size += len(piece)
    return size


def _few(frames: list[list[bytes]]) -> tuple[int, int]:
    """How many of the frames that wait are written at once, and their bytes."""
    count = size = 0
    while size < FLUSH_BYTES and count < len(frames):
        size += _size(frames[count])
        count += 1
    return count, size


def _whole_frames(frames: list[list[bytes]], written: int) -> tuple[int, int]:
    """Of so many bytes: how many frames are whole, and their bytes."""
    whole = size = 0
    for made in frames:
        more = _size(made)
        if size + more > written:
            break
        whole, size = whole + 1, size + more
    return whole, size


def _tell(dones: list[Done | None], *, ok: bool) -> None:
    for done in dones:
        if done:
            try:
                done(ok)
            except Exception:
                log.exception("a spool callback failed")
