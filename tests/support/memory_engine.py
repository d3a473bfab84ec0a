"""The fake engine in memory: what it answered once it answers again without being asked. Its text is a function of the request."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.support.fake_engine import FakeEngine
from tests.support.memory import MemoryLoop, MemoryTransport

_START = re.compile(rb"[A-Z]+ [^\r\n]+ HTTP/1\.1\r\n")
MOST = 4096
"""Answers that are kept."""


class CountedEngine(FakeEngine):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[bytes] = []
        """Request lines of the calls, also on routes that it does not have."""


class Listening:
    """The near end of a connection to the engine itself: its answers go to ``client``."""

    def __init__(self, client: MemoryEngine) -> None:
        self.client = client

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.client.answered(data)

    def eof_received(self) -> None:
        """The connection goes with it."""

    def connection_lost(self, _: BaseException | None) -> None:
        self.client.close()


class MemoryEngine:
    """One connection to it, a protocol."""

    def __init__(self, engine: CountedEngine, loop: MemoryLoop, name: str, kept: dict[bytes, bytes]) -> None:
        """``name``: under which the engine itself is reached on ``loop``. ``kept``: answers by request, of all connections."""
        self.engine, self.loop, self.name, self.kept = engine, loop, name, kept
        self.transport: MemoryTransport | None = None
        self.itself: MemoryTransport | None = None
        self.buffer = self.asked = self.answer = b""
        self.closed = False

    def connection_made(self, transport: MemoryTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, end, rest = self.buffer.partition(b"\r\n\r\n")
        # what does not begin as a request is a part of a chunked body
        at = head.lower().find(b"\r\ncontent-length:") if _START.match(head) else -1
        if not end or (at >= 0 and len(rest) < int(head[at + 17 :].split(b"\r\n", 1)[0])):
            return
        whole, self.buffer = self.buffer, b""
        if head.startswith(b"POST "):
            self.engine.lines.append(head.split(b"\r\n", 1)[0])
        key = head.split(b"\r\n", 1)[0] + b"\n" + rest
        self._keep()
        found = self.kept.get(key) if at >= 0 else None
        if found is None:
            self.asked = key if at >= 0 else b""
            self._ask(whole)
            return
        self.engine.raw.append(rest)
        fields = dict(line.decode("latin-1").split(": ", 1) for line in head.split(b"\r\n")[1:])
        self.engine.seen.append((json.loads(rest), fields))
        assert self.transport is not None
        self.transport.write(found)

    def _ask(self, whole: bytes) -> None:
        if self.itself is None:
            self.itself, _ = self.loop.connect(lambda: Listening(self), self.name)
        self.itself.write(whole)

    def _keep(self) -> None:
        """The answer before is whole by now."""
        if self.asked and b" 200 OK\r\n" in self.answer[:20] and len(self.kept) < MOST:
            self.kept[self.asked] = self.answer
        self.asked = self.answer = b""

    def answered(self, data: bytes) -> None:
        self.answer += data
        if self.transport is not None:
            self.transport.write(data)

    def eof_received(self) -> None:
        """A client that sends no more is gone."""

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def connection_lost(self, _: BaseException | None) -> None:
        self.transport = None
        if self.itself is not None:
            self.itself.close()
