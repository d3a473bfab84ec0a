"""A data plane in front of the fake engine, without a socket between them: bytes of a connection in, a stored row out.

What is sent goes as it is read. One input in ``compare_every`` also goes past the fast way, and both must say the same.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import time

import aiohttp
from tests.support.dataplane import LAST, NEVER, forget_replays, sent
from tests.support.memory import MemoryLoop, MemoryTransport
from tests.support.memory_engine import CountedEngine, MemoryEngine

from slipstream.config import Config
from slipstream_proxy.control.storage.spool_reader import gather, parse
from slipstream_proxy.data.plane import Plane
from slipstream_proxy.data.server import connection
from slipstream_proxy.log.segments import list_segments
from slipstream_proxy.store.conversation.call_rows import call_row, pack
from slipstream_proxy.store.conversation.fingerprint import cut
from slipstream_proxy.store.values import Position, RecordedCall

ENGINE, ITSELF = "engine:80", "engine itself"
COMPARE_EVERY = 8
"""Inputs of which one goes both ways: that takes several times as long."""
READ_EVERY = 64
"""Inputs after which the records are read."""
REPEATED = re.compile(rb"(?is)\n(content-(?:location|range|type)|etag|max-forwards|server|user-agent):.*\n\1:")
"""Lines that aiohttp refuses to read twice. The fast way relays both, as the engine reads them."""
Said = tuple[list[bytes], list[bytes], list[dict[str, str]]]
"""Statuses of the replies; bodies and heads of what the engine got."""


def alike(fast: Said, slow: Said, given: bytes) -> bool:
    """Whether they differ no more than aiohttp does with how it is fed.

    It forgets what it read before a malformed request in the same read, and what stands before bytes behind a request
    that closes. Only the fast way hands it several requests in one read. A length beyond 64 bits is malformed to aiohttp,
    and too large to the fast way.
    """
    refused = [said[0][-1:] in ([b"400"], [b"413"]) for said in (fast, slow)]
    closed_early = given.lower().count(b"close") > 1  # the last request closes, too
    if all(refused) or (refused[0] and closed_early) or (refused[1] and REPEATED.search(given)):
        (_, fast_raw, fast_heads), (_, slow_raw, slow_heads) = fast, slow
        return all(a == b for a, b in (*zip(fast_raw, slow_raw), *zip(fast_heads, slow_heads)))
    return False


class WholeWay:
    def __init__(self, compare_every: int = COMPARE_EVERY) -> None:
        self.loop = MemoryLoop()
        self.compare_every = compare_every
        self.folder = tempfile.TemporaryDirectory(prefix="fuzz-proxy-")
        proxy = {"durability": "none", "body_limit": 4096, "header_limit": 4096, "segment_bytes": 2**20}
        engine = {"urls": [f"http://{ENGINE}"], "name": "tiny"}
        self.config = Config(data_dir=self.folder.name, engine=engine, proxy=proxy)
        self.positions: dict[str, Position] = {}
        self.inputs = self.compared = self.asked = self.recorded = 0
        self.loop.run_until_complete(self.start())
        self.loop.enter()

    async def start(self) -> None:
        self.engine = await CountedEngine().start()
        assert self.engine._runner is not None
        server = self.engine._runner.server
        assert server is not None
        kept: dict[bytes, bytes] = {}
        self.loop.at[ITSELF] = server
        self.loop.at[ENGINE] = lambda: MemoryEngine(self.engine, self.loop, ITSELF, kept)
        self.plane = Plane(self.config)
        self.server = self.plane.make_server()
        # what is relayed and not captured goes to the engine with aiohttp's client, which dials by itself
        self.plane.passthrough._session()._connector = aiohttp.UnixConnector(ENGINE, limit=0)
        self.plane.contexts._known[f"http://{ENGINE}"] = 4096  # it would ask with a client of its own
        self.plane.episodes.limit = 2000  # so that they are forgotten, too, and memory does not grow

    def send(self, parts: list[bytes]) -> None:
        """Raises ``AssertionError`` where the two ways differ, or a record cannot be read."""
        if not parts or b"pgrade" in b"".join(parts):  # aiohttp drops what is sent behind it
            return
        self.inputs += 1
        if self.inputs % self.compare_every == 1 % self.compare_every:
            self.compared += 1
            parts = [*parts, LAST.replace(b"close", b"keep-alive"), LAST]  # so that each head and most bodies end
            assert self.same(parts, 0.0) or self.same(parts, 0.05) or self.same(parts, 1.0), parts
        else:
            self.talk([*parts, LAST], 0.0)
        if self.inputs % READ_EVERY == 0:
            self.read_records()

    def same(self, parts: list[bytes], patience: float) -> bool:
        line = connection._LINE
        fast = self.talk(parts, patience)
        connection._LINE = NEVER
        connection._lines.clear()  # request lines that were read before
        try:
            slow = self.talk(parts, patience)
        finally:
            connection._LINE = line
        return fast == slow or alike(fast, slow, b"".join(parts))

    def talk(self, parts: list[bytes], patience: float) -> Said:
        engine = self.engine
        engine.seen.clear()
        engine.raw.clear()
        engine.lines.clear()
        forget_replays(self.plane)
        client = MemoryTransport(self.loop, self.server())
        for part in parts:
            client.feed(part)
            self.loop.settle(1)
        self.loop.settle()
        until = time.monotonic() + patience
        while patience and not client.closed and time.monotonic() < until:
            time.sleep(0.002)
            self.loop.settle()
        client.close()
        self.loop.settle()
        got = bytes(client.got)
        assert b"the proxy failed" not in got and b"500 Internal" not in got, got
        heads = [sent(headers) for _, headers in engine.seen]
        assert not [name for head in heads for name in head if name.startswith("x-slipstream-")], heads
        self.asked += len(engine.lines)
        return re.findall(rb"HTTP/\d\.\d (\d+) ", got), engine.raw[:], heads

    def read_records(self) -> None:
        """What was recorded can be read as calls, becomes rows, and is no more than the engine was asked."""
        reads = gather(self.config.spool_dir, self.positions, 4096, 2**26, lambda *torn: None)
        for read in reads:
            self.positions[read.writer] = read.position
            item, whole = parse(read)
            assert isinstance(item, RecordedCall) and (whole or item.parsed.untrainable), item
            row = call_row(item, "-/e", 0, packed := pack(item), cut(packed.prompt, ()), None, None)
            assert row.id == read.frame.head["id"]
            assert "\0" not in f"{item.head.episode}{item.head.task}{item.head.tags}"
        self.recorded += len(reads)
        assert self.recorded <= self.asked, (self.recorded, self.asked)
        for segments in list_segments(self.config.spool_dir).values():
            for number, path in segments[:-1]:
                if number < max(p.segment for p in self.positions.values()):
                    path.unlink()

    def close(self) -> None:
        self.loop.leave()
        with contextlib.suppress(Exception):
            self.loop.run_until_complete(self.plane.close())
            self.loop.run_until_complete(self.engine.stop())
        self.loop.close()
        self.folder.cleanup()
