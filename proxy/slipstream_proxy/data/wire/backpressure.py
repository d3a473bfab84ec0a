"""A client that does not read, or is out of reach, keeps a slot of the engine. This ends its call in time. And what one
that reads slowly has not taken of a whole reply goes to a file.

Not compiled: it runs once a second, and for large replies.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import struct
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

_TIOCOUTQ = 0x5411
"""Linux: bytes that the peer has not acknowledged."""


def unsent(transport: asyncio.Transport) -> int:
    """Bytes that the client has not taken; 0 while all of them are the operating system's."""
    waiting = transport.get_write_buffer_size()
    sock = transport.get_extra_info("socket")
    if waiting and sock is not None and sys.platform == "linux":
        try:
            waiting += struct.unpack("i", fcntl.ioctl(sock.fileno(), _TIOCOUTQ, bytes(4)))[0]
        except OSError:
            pass
    return waiting


def hung_up(transport: asyncio.Transport) -> bool:
    """Whether the client is gone, though nothing is read from it at the moment."""
    sock = transport.get_extra_info("socket")
    if sock is None or sys.platform != "linux":
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


LARGE_REPLY_BYTES = 2**16
"""Bytes from which on a whole reply is handed out in pieces."""
PIECE_BYTES = 2**17
"""Bytes that leave at once."""
SLOW_CLIENT_S = 1.0
"""Seconds after which what a client has not taken goes to a file."""


class Rest:
    """What a client has not taken yet of a whole reply: in memory, and in a file without a name once it is slow."""

    def __init__(self, data: bytes, now: float) -> None:
        self.since = now
        self._data = data
        self._at = 0
        self._file: IO[bytes] | None = None

    def take(self) -> bytes:
        """The next piece; empty at the end."""
        data, file = self._data, self._file  # in this order: ``spill`` works in another thread
        at = self._at
        piece = data[at : at + PIECE_BYTES] if file is None else os.pread(file.fileno(), PIECE_BYTES, at)
        self._at += len(piece)
        return piece

    def spill(self, folder: Path) -> None:
        """Where there is no room, it stays in memory."""
        try:
            file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - it lives as long as this
            left = memoryview(self._data)
            while left:
                left = left[file.write(left) or 0 :]
        except OSError:
            return
        self._file = file
        self._data = b""


class Rests:
    """The large replies that a worker hands out just now."""

    def __init__(self, folder: Path) -> None:
        """``folder``: on a disk. The system's own folder for such files may be memory."""
        self._folder = folder
        self._held: set[Rest] = set()
        self._tried: set[Rest] = set()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, data: bytes) -> Rest:
        rest = Rest(data, asyncio.get_running_loop().time())
        self._held.add(rest)
        return rest

    def release(self, rest: Rest) -> None:
        self._held.discard(rest)
        self._tried.discard(rest)

    def check(self, now: float) -> None:
        """Once a second."""
        for rest in self._held - self._tried:
            if now - rest.since > SLOW_CLIENT_S:
                self._tried.add(rest)
                asyncio.get_running_loop().run_in_executor(None, rest.spill, self._folder)


class StalledClients:
    """``ended`` is asked once a second. Whoever takes a byte now and then stays."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._waiting: dict[asyncio.Transport, tuple[int, float]] = {}

    def ended(self, transports: Iterable[asyncio.Transport | None], now: float) -> list[asyncio.Transport]:
        """Those that took nothing for ``timeout`` seconds."""
        before, self._waiting = self._waiting, {}
        found = []
        for transport in transports:
            if transport is None or not (size := unsent(transport)):
                continue
            last, since = before.get(transport, (size, now))
            if size < last:
                since = now
            if now - since > self.timeout:
                found.append(transport)
            self._waiting[transport] = size, since
        return found
