"""Inputs from a corpus without coverage: input ``n`` is a function of the corpus, the seed and ``n`` alone."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

BLOCK = 64
"""Inputs that are made from one state of the random numbers."""
LONGEST = 4096
"""Bytes of an input."""
_LENGTH = re.compile(rb"(?i)(content-length: *)\d+")

_MESSAGE = [{"role": "user", "content": "a ✓"}]
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BODIES: list[tuple[bytes, dict[str, object]]] = [
    (b"/v1/chat/completions", {"model": "tiny", "messages": _MESSAGE}),
    (b"/v1/chat/completions", {"model": "tiny", "messages": _MESSAGE, "stream": True}),
    (b"/v1/chat/completions", {"messages": _MESSAGE, "n": 2, "logprobs": True, "top_logprobs": 2}),
    (
        b"/v1/chat/completions",
        {"messages": _MESSAGE, "stream": True, "stream_options": {"include_usage": True}, "tools": [_TOOL]},
    ),
    (b"/v1/chat/completions", {"model": "tiny", "messages": [], "metadata": {"slipstream_episode": "e", "k": "v"}}),
    (b"/v1/completions", {"model": "tiny", "prompt": "a"}),
    (b"/v1/completions", {"model": "tiny", "prompt": [1, 2], "stream": True, "max_tokens": 3}),
    (b"/v1/messages", {"model": "tiny", "max_tokens": 5, "system": "s", "messages": _MESSAGE}),
    (b"/v1/messages", {"model": "tiny", "max_tokens": 5, "stream": True, "messages": _MESSAGE}),
    (b"/v1/responses", {"model": "tiny", "input": "a"}),
    (b"/v1/responses", {"model": "tiny", "input": [{"role": "user", "content": "a"}], "stream": True}),
    (b"/v1/embeddings", {"model": "tiny", "input": "a"}),
    (b"/t/t1/e/e%201/v1/chat/completions", {"model": "tiny:t:e", "messages": _MESSAGE}),
]
"""Whole calls of each format, with their paths."""
LINES = [
    b"Authorization: Bearer k", b"x-slipstream-episode: e", b"x-slipstream-task: t", b"x-slipstream-split: eval",
    b"x-slipstream-done: true", b"x-slipstream-tag-a: b", b"Idempotency-Key: i", b"x-stainless-retry-count: 1",
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"X-Request-Id: r", b"Accept: */*",
    b"Connection: keep-alive", b"Connection: close", b"Content-Type: application/json", b"Accept-Encoding: gzip",
    b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"Content-Encoding: deflate", b"Origin: http://a",
    b"Content-Length: 0", b"Host: localhost", b"Cookie: a=b", b"User-Agent: a/1", b"Connection: x-a, te", b"TE: trailers",
]  # fmt: skip
TOKENS = [
    *(b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\n\n", b" ", b"\t", b":", b": ", b"\0", b"\x7f", b"\x80", b"\xff", b"\xc3\xbc"),
    *(b"GET ", b"POST ", b"HEAD ", b"PUT ", b"OPTIONS ", b"CONNECT ", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"/v1/models"),
    *(b"http://localhost", b"/e/", b"/t/", b"%00", b"%2f", b"?a=b", b"#", b"..", b"0\r\n\r\n", b"5\r\nhello\r\n", b"ffffffff\r\n"),
    *(b";a=b", b", ", b"+1", b"-1", b"0x1", b"00", b"18446744073709551616", b"chunked", b"gzip", b"identity", b"\r\n "),
    *(b"null", b"true", b"1e999", b"NaN", b"[[[[", b"{}", b'"', b"\\ud800", b"\\u0000", b'"stream":true,', b'"n":2,'),
    *(b'"logprobs":true,', b'"return_token_ids":true,', b'"model":"tiny@1",', b'"metadata":{"slipstream_done":true},'),
]  # fmt: skip
"""Words of HTTP and of the bodies."""


def pieces_of(data: bytes) -> list[bytes]:
    """What the guided fuzzer's ``pieces`` makes of a file of its corpus: a piece's length stands at the file's end."""
    found, at, end = [], 0, len(data)
    while at < end:
        end -= 1
        found.append(data[at : min(at + 1 + data[end] % 64, end)])
        at += len(found[-1]) or 1
    return found


def read_corpus(folder: Path) -> list[bytes]:
    """In the order of the files' names, which are hashes of what they hold."""
    found = [b"".join(pieces_of(path.read_bytes())) for path in sorted(folder.iterdir()) if path.is_file()]
    return [data for data in found if data]


class Mutator:
    def __init__(self, corpus: list[bytes], seed: int) -> None:
        self.corpus, self.seed = corpus, seed
        self.rng = random.Random()
        self.bodies = [(path, json.dumps(body, ensure_ascii=False).encode()) for path, body in BODIES]

    def block(self, number: int) -> list[list[bytes]]:
        """The inputs from ``number * BLOCK`` on, each in the pieces in which it arrives."""
        self.rng.seed(self.seed * 2**40 + number)
        return [self.make() for _ in range(BLOCK)]

    def make(self) -> list[bytes]:
        rng = self.rng.random
        kind = rng()
        if kind < 0.3 or not self.corpus:
            data = self.request()
            if rng() < 0.2:
                data += self.request()
        else:
            data = bytearray(self.pick(self.corpus))
            if kind < 0.5:  # the beginning of one and the end of another
                other = self.pick(self.corpus)
                data = data[: self.below(len(data) + 1)] + other[self.below(len(other) + 1) :]
        for _ in range(self.below(4)):
            self.spoil(data)
        if rng() < 0.4:
            self.mend(data)
        return self.cut(bytes(data[:LONGEST]))

    def below(self, limit: int) -> int:
        return int(self.rng.random() * limit)

    def pick(self, of: list[bytes]) -> bytes:
        return of[int(self.rng.random() * len(of))]

    def request(self) -> bytearray:
        """A whole call, whose head has some of the lines that heads may have."""
        path, body = self.bodies[self.below(len(self.bodies))]
        lines = [self.pick(LINES) for _ in range(self.below(5))] if self.rng.random() < 0.7 else []
        lines += [b"Host: localhost", b"Content-Length: %d" % len(body)]
        return bytearray(b"POST %b HTTP/1.1\r\n%b\r\n\r\n%b" % (path, b"\r\n".join(lines), body))

    def spoil(self, data: bytearray) -> None:
        below = self.below
        at, kind = below(len(data) + 1), below(8)
        if kind == 0:
            data[at:at] = self.pick(TOKENS)
        elif kind == 1:
            data[at : at + 1 + below(8)] = self.pick(TOKENS)
        elif kind == 2:
            data[at:at] = self.pick(LINES) + b"\r\n"
        elif kind == 3:
            del data[at : at + 1 + below(16)]
        elif kind == 4:  # a part of it again
            start = below(len(data) + 1)
            data[at:at] = data[start : start + 1 + below(64)]
        elif kind == 5 and (end := data.find(b"\r\n", at)) >= 0:  # a line's end
            data[end : end + 2] = (b"\n", b"\r", b"\r\r\n", b"\n\r")[below(4)]
        elif at < len(data):
            data[at] = below(256) if kind == 6 else data[at] ^ 1 << below(8)

    def mend(self, data: bytearray) -> None:
        """Make Content-Length that of what follows the first head, so that a spoilt body is read as one."""
        end = data.find(b"\r\n\r\n")
        m = _LENGTH.search(data, 0, end) if end >= 0 else None
        if m is not None:
            data[m.start() : m.end()] = m[1] + b"%d" % (len(data) - end - 4)

    def cut(self, data: bytes) -> list[bytes]:
        """As it is, or cut once, a few times, or into pieces of up to 64 bytes."""
        kind = self.rng.random()
        if kind < 0.4 or len(data) < 2:
            return [data] if data else []
        if kind > 0.95:
            cuts, at = [], 0
            while (at := at + 1 + self.below(64)) < len(data):
                cuts.append(at)
        else:
            cuts = sorted({1 + self.below(len(data) - 1) for _ in range(1 if kind < 0.75 else 2 + self.below(4))})
        return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
