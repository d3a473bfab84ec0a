"""Coverage-guided fuzzing of everything that reads strangers' bytes: ``make fuzz`` (ARGS="chunked -max_total_time=600"). Needs atheris.

Targets: requests (the whole way in, from a connection's bytes to the row that is stored, the fast way against aiohttp's: ``whole_way.py``), chunked, events, fields, head, messages, responses, record. A target may raise
nothing but what it promises.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))

with atheris.instrument_imports(include=["slipstream_proxy"]):
    from tests.fuzz.whole_way import WholeWay

    from slipstream_proxy.data.wire.errors import RequestRefused
    from slipstream_proxy.data.wire.http1 import ChunkedBody, RemoteProtocolError, ResponseHead
    from slipstream_proxy.data.wire.identity import Prefix, read_tags
    from slipstream_proxy.data.wire.request import parse_fields
    from slipstream_proxy.dialects import BY_NAME
    from slipstream_proxy.dialects.base import EventCutter, Hide, event_data, stream_objects
    from slipstream_proxy.log.records import CallHead

Provider = atheris.FuzzedDataProvider
ALL = Hide(ids=True, logprobs=True, reasoning=True)


def pieces(data: Provider) -> list[bytes]:
    """The bytes, cut anywhere."""
    found = []
    while data.remaining_bytes():
        found.append(data.ConsumeBytes(data.ConsumeIntInRange(1, 64)))
    return found


def chunked(data: Provider) -> None:
    """However the body is cut, the same comes out."""
    parts = pieces(data)
    outcomes = []
    for fed in (parts, [b"".join(parts)]):
        body, got = ChunkedBody(), b""
        try:
            for part in fed:
                got += b"".join(body.feed(part))
                if body.done:
                    break
        except RemoteProtocolError:
            outcomes.append(None)
        else:
            outcomes.append((got, body.done))
    assert outcomes[0] == outcomes[1] or len(b"".join(parts)) > 4096, outcomes


def events(data: Provider) -> None:
    """Nothing is lost."""
    reader, got, parts = EventCutter(), b"", pieces(data)
    for part in parts:
        for event in [part] if reader.single(part) else reader.feed(part):
            event_data(event)
            got += event
    assert got + reader.tail == b"".join(parts)
    list(stream_objects(b"".join(parts)))


_way: list[WholeWay] = []


def requests(data: Provider) -> None:
    """A request is the same on both ways, or none on both."""
    if not _way:
        _way.append(WholeWay())
    _way[0].send(pieces(data))


def fields(data: Provider) -> None:
    """No line that goes upstream holds another."""
    read = parse_fields(data.ConsumeBytes(data.remaining_bytes()))
    if read is None:
        return
    try:
        read_tags(read[1], Prefix("/", None, None), None, None, traceparent=True)
    except RequestRefused:
        pass


def head(data: Provider) -> None:
    try:
        found = ResponseHead(data.ConsumeBytes(data.remaining_bytes()))
    except RemoteProtocolError:
        return
    assert b"\r\n\r\n" not in found.block


def _objects(data: Provider) -> list[bytes]:
    return [b"data: %b\n\n" % part for part in data.ConsumeBytes(data.remaining_bytes()).split(b"\0")]


def _through(name: str, data: Provider) -> None:
    """Requests are translated or left alone; replies turn round or raise, and the caller answers for that."""
    dialect = BY_NAME[name]
    request, *replies = _objects(data)
    try:
        body = json.loads(request[6:-2])
    except (ValueError, RecursionError):
        return
    if not isinstance(body, dict):
        return
    dialect.turn(body)
    before = json.dumps(body)
    made = dialect.inject(body)
    if made.back is None:
        return
    assert json.dumps(body) == before, "the client's own body was changed"
    for reply in replies:
        try:
            made.back.event(reply)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            return


def messages(data: Provider) -> None:
    _through("messages", data)


def responses(data: Provider) -> None:
    _through("responses", data)


def record(data: Provider) -> None:
    """A recorded call is read, or says that it cannot be."""
    name = data.PickValueInList(sorted(BY_NAME))
    stream, route = data.ConsumeBool(), data.PickValueInList([{}, {"route": "chat"}])
    request = data.ConsumeBytes(data.ConsumeIntInRange(0, 256))
    reply = data.ConsumeBytes(data.remaining_bytes())
    call = CallHead(
        id="c", key="-", episode="e", task=None, split="train", tags={}, model="m", trained="m", adapter="m", arm="live", pin="local",
        dialect=name, stream=stream, at=0.0, seconds=0.0, first_byte=None, status=200, outcome="ok", upstream="u", extra=route,
    )  # fmt: skip
    dialect = BY_NAME[name]
    read = dialect.parse(request, reply, call)
    assert read.untrainable or read.prompt_ids
    dialect.said(reply, stream=stream)
    dialect.whole(reply, ALL)
    dialect.event(reply, ALL)


TARGETS: dict[str, Callable[[Provider], None]] = {
    f.__name__: f for f in (requests, chunked, events, fields, head, messages, responses, record)
}


SAID = [
    {"role": "assistant", "content": ""}, {"reasoning": "h"}, {"content": "a"},
    {"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": "{}"}}]},
]  # fmt: skip
CHUNKS = [{"id": "c", "model": "m", "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in SAID]
STREAM = [
    json.dumps(c).encode()
    for c in [*CHUNKS, {"id": "c", "model": "m", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}]
]
SEEDS: dict[str, bytes] = {
    "requests": b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\nContent-Length: 2\r\n\r\n{}" * 2 + b"\x3f" * 4,
    "chunked": b"5\r\nhello\r\n0\r\nx: y\r\n\r\n",
    "events": b"event: x\r\ndata: {}\r\n\r\ndata: [DONE]\n\n",
    "fields": b"Host: a\r\nx-slipstream-episode: e\r\nContent-Length: 1\r\n",
    "head": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n",
    "messages": b"\0".join([b'{"model":"m","max_tokens":5,"system":"s","messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}', *STREAM, b"[DONE]"]),
    "responses": b"\0".join([b'{"input":[{"role":"user","content":"a"},{"type":"function_call_output","call_id":"c","output":"x"}]}', *STREAM, b"[DONE]"]),
    "record": b"data: " + STREAM[1] + b"\n\n",
}  # fmt: skip
"""Something to begin with for each target."""


def main() -> None:
    name = sys.argv.pop(1) if len(sys.argv) > 1 and sys.argv[1] in TARGETS else "record"
    target = TARGETS[name]
    corpus = Path(tempfile.mkdtemp(prefix="fuzz-"))
    (corpus / "seed").write_bytes(SEEDS[name])
    sys.argv.append(str(corpus))
    atheris.Setup(sys.argv, lambda data: target(Provider(data)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
