"""Engines that behave as engines do on bad days."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import aiohttp
import pytest
from tests.support import until
from tests.support.dataplane import ASK, post, read_request

from slipstream_proxy.data.call.call import ActiveCall
from slipstream_proxy.data.routes import passthrough
from slipstream_proxy.data.wire import upstream
from slipstream_proxy.data.wire.receiver import Connection
from slipstream_proxy.data.wire.turns import Turns
from slipstream_proxy.keys import Keys

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


async def test_an_idle_connection_that_was_closed_is_replaced(start, serve):
    connections = []

    async def one_each(reader, writer):
        connections.append(writer)
        await read_request(reader)
        writer.write(OK)
        await read_request(reader)  # the second request on it is never answered

    proxy = await start(engine={"urls": [await serve(one_each)]})
    for _ in range(4):
        assert (await post(proxy.url, ASK))[0] == 200
    assert len(connections) == 4


@pytest.mark.parametrize(
    "answer",
    [
        b"rubbish\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: b\nSet-Cookie: evil=1\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nX-A: b\rSet-Cookie: evil=1\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nX-A: b\0\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nX-A: \x1b[31m\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nX-A: b\r\n Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding : chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX A: b\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n: b\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 300_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
        b"",
    ],
)
async def test_a_malformed_answer_is_a_502(start, serve, answer):
    async def speak(reader, writer):
        await read_request(reader)
        writer.write(answer)
        await writer.drain()

    proxy = await start(engine={"urls": [await serve(speak)]})
    status, headers, body = await post(proxy.url, ASK)
    assert status == 502 and headers["retry-after"] == "1" and json.loads(body)["error"]["code"] == 502
    assert (await proxy.record())[0].head["outcome"] == "error"


async def test_an_upstream_cannot_speak_for_this_proxy(start, serve):
    async def pretend(reader, writer):
        await read_request(reader)
        writer.write(
            OK.replace(
                b"content-length",
                b"X-Slipstream-Call: evil\r\nx-slipstream-done: 1\r\nETag: \xe9 ok\r\ncontent-length",
            )
        )
        await writer.drain()

    proxy = await start(engine={"urls": [await serve(pretend)]})
    status, headers, _ = await post(proxy.url, ASK)
    assert status == 200 and headers.getall("x-slipstream-call") == [(await proxy.record())[0].head["id"]]
    assert "x-slipstream-done" not in headers and "etag" in headers


async def test_an_engine_that_says_nothing_is_a_504(start, serve):
    async def sleep(reader, writer):
        await read_request(reader)
        await reader.read()

    proxy = await start(engine={"urls": [await serve(sleep)]}, proxy={"upstream_timeout": 0.2})
    assert (await post(proxy.url, ASK))[0] == 504


async def test_bodies_that_end_with_the_connection_and_100s(start, serve):
    async def old(reader, writer):
        await read_request(reader)
        writer.write(
            b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
        )
        for part in (b'{"a"', b":1}"):
            writer.write(part)
            await writer.drain()

    proxy = await start(engine={"urls": [await serve(old)]})
    assert (await post(proxy.url, ASK))[2] == b'{"a":1}'


async def test_a_stream_in_single_bytes(start, serve):
    events = b'data: {"choices":[{"index":0,"delta":{"content":"\xc3\xbc"},"logprobs":{"content":[]},"finish_reason":null,"token_ids":[1]}]}\n\ndata: [DONE]\n\n'

    async def drip(reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for i in range(len(events)):
            for byte in b"1\r\n" + events[i : i + 1] + b"\r\n":
                writer.write(bytes((byte,)))
                await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        await reader.read()

    proxy = await start(engine={"urls": [await serve(drip)]})
    status, _, body = await post(proxy.url, {**ASK, "stream": True})
    assert status == 200 and body == events.replace(b'{"content":[]}', b"null").replace(b"[1]", b"null")
    assert (await proxy.record())[0].reply == events


async def test_what_others_wait_for_is_relayed_when_it_arrives(start, serve):
    """The first event does not wait for the second."""
    go = asyncio.Event()

    async def slowly(reader, writer):
        await read_request(reader)
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\na\r\ndata: {}\n\n\r\n"
        )
        await go.wait()
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()
        await reader.read()

    proxy = await start(engine={"urls": [await serve(slowly)]})
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    body = json.dumps({**ASK, "stream": True}).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    async with asyncio.timeout(30):
        await reader.readuntil(b"data: {}\n\n")
        go.set()
        await reader.readuntil(b"0\r\n\r\n")
    writer.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_an_error_in_a_stream_names_the_clients_model(start, serve, path):
    async def fail(reader, writer):
        await read_request(reader)
        error = {"error": {"message": "The model `gone` fell over", "type": "InternalServerError", "code": 500}}
        body = f"data: {json.dumps(error)}\n\ndata: [DONE]\n\n".encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(body) + body)

    proxy = await start(engine={"urls": [await serve(fail)]}, models={"gpt-4o": {"base": "gone"}})
    ask = {**ASK, "input": "x", "max_tokens": 3, "max_output_tokens": 3, "model": "gpt-4o", "stream": True}
    _, _, body = await post(proxy.url, ask, path=path)
    assert b"The model `gpt-4o` fell over" in body and b"gone" not in body


async def test_an_engine_that_never_comes_to_its_point(start, serve):
    async def chatty(reader, writer):
        await read_request(reader)
        while True:
            writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
            await writer.drain()

    proxy = await start(engine={"urls": [await serve(chatty)]})
    async with asyncio.timeout(20):
        status, _, body = await post(proxy.url, ASK)
    assert status == 502 and b"1xx" in body


@pytest.mark.parametrize("head", [b"content-length: 99999999", b"transfer-encoding: chunked"])
async def test_a_reply_without_end_is_cut_off(start, serve, monkeypatch, head):
    monkeypatch.setattr(upstream, "MAX_REPLY", 2**20)

    async def endless(reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + head + b"\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
            await writer.drain()

    proxy = await start(engine={"urls": [await serve(endless)]})
    async with asyncio.timeout(20):
        status, _, body = await post(proxy.url, ASK)
    assert status == 502 and b"larger than" in body and not proxy.plane.services.in_flight


@pytest.mark.parametrize("engines", [1, 3])
async def test_replies_share_a_workers_memory_and_the_largest_one_ends(start, serve, engines):
    """None of them is too large alone, nor are those of one engine. The small one comes whole."""
    go_on = asyncio.Event()

    async def engine(reader, writer):
        small = b"small" in await read_request(reader)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        if small:
            await go_on.wait()
            writer.write(head + b"content-length: 2\r\n\r\n{}")
        else:
            writer.write(head + b"content-length: 99999999\r\n\r\n")
            while True:
                writer.write(b" " * 65536)
                await writer.drain()

    proxy = await start(engine={"urls": [await serve(engine) for _ in range(engines)]})
    proxy.plane.pools.memory.limit = 2**20
    small = asyncio.create_task(post(proxy.url, {**ASK, "user": "small"}))
    async with asyncio.timeout(60):
        replies = await asyncio.gather(*(post(proxy.url, ASK) for _ in range(6)))
        go_on.set()
        assert (await small)[0] == 200
    assert all(status == 502 and b"1048576 bytes together" in body for status, _, body in replies)
    assert sum(len(frame.reply) for frame in await proxy.record(7)) < 4 * 2**20


async def test_relayed_replies_share_it_too(start, serve):
    """Each is kept whole where the model has another name in it."""

    async def engine(reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        while True:
            writer.write(b" " * 65536)
            await writer.drain()

    proxy = await start(engine={"urls": [await serve(engine)]}, models={"nick": {"base": "tiny"}})
    proxy.plane.pools.memory.limit = 2**20
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:

        async def embed() -> tuple[int, bytes]:
            async with session.post(proxy.url + "/v1/embeddings", json={"model": "nick", "input": "x"}) as reply:
                return reply.status, await reply.read()

        replies = await asyncio.gather(*(embed() for _ in range(4)), *(post(proxy.url, ASK) for _ in range(2)))
    assert [reply[0] for reply in replies] == [502] * 6
    assert any(b"1048576 bytes together" in reply[1] for reply in replies[:4])
    assert not proxy.plane.pools.memory.relayed


@pytest.mark.parametrize("kind", [b"application/json", b"text/event-stream"])
async def test_chunks_that_are_all_extension_are_cut_off(start, serve, kind):
    """Four kilobytes for each byte of the reply: it would be long until the reply is too long."""

    async def wordy(reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: " + kind + b"\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1;" + b"x" * 4000 + b"\r\n \r\n")
            await writer.drain()

    proxy = await start(engine={"urls": [await serve(wordy)]})
    async with asyncio.timeout(20):
        try:
            status, _, body = await post(proxy.url, {**ASK, "stream": kind != b"application/json"})
            assert status == 502 and b"chunk extensions" in body
        except aiohttp.ClientPayloadError:
            assert kind == b"text/event-stream"
    (frame,) = await proxy.record(1)
    assert frame.head["outcome"] == "error" and len(frame.reply) < 10
    assert not proxy.plane.services.in_flight and any("error" in str(key) for key in proxy.plane.metrics.calls)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/models"])
@pytest.mark.parametrize("head", [b"content-length: 99999999", b"transfer-encoding: chunked"])
async def test_a_relayed_reply_without_end_is_not_kept(start, serve, monkeypatch, path, head):
    """With a name to map the reply must be there whole; the list of models is read, too."""
    monkeypatch.setattr(upstream, "MAX_REPLY", 2**20)
    monkeypatch.setattr(passthrough, "_WHOLE", 2**30)

    async def endless(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + head + b"\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
            await writer.drain()

    proxy = await start(engine={"urls": [await serve(endless)]}, models={"gpt-*": {"base": "tiny"}})
    method, body = ("GET", None) if path == "/v1/models" else ("POST", {"model": "gpt-4o", "input": "x"})
    async with asyncio.timeout(20), aiohttp.ClientSession() as session:
        async with session.request(method, proxy.url + path, json=body) as reply:
            assert reply.status == 502 and b"more than" in await reply.read()


async def test_a_relayed_large_reply_goes_on_as_it_comes(start, serve, monkeypatch):
    monkeypatch.setattr(upstream, "MAX_REPLY", 2**20)
    monkeypatch.setattr(passthrough, "_WHOLE", 2**16)

    async def large(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % 2**22 + b"x" * 2**22)
        await writer.drain()

    proxy = await start(engine={"urls": [await serve(large)]})
    status, _, body = await post(proxy.url, {"model": "tiny", "input": "x"}, path="/v1/embeddings")
    assert status == 200 and body == b"x" * 2**22


async def test_a_relayed_request_does_not_wait_for_an_engine_that_never_comes_to_its_point(start, serve):
    async def chatty(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        while True:
            writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    proxy = await start(engine={"urls": [await serve(chatty)]}, proxy={"upstream_timeout": 0.5})
    async with asyncio.timeout(20):
        assert (await post(proxy.url, {"model": "tiny", "input": "x"}, path="/v1/embeddings"))[0] == 504


class Piecewise(Connection):
    """A connection with so many pieces that wait."""

    def __init__(self, name: str, pieces: int, said: list[str]) -> None:
        self.name, self.pieces, self.said = name, pieces, said

    def take_turn(self, size: int) -> bool:
        self.pieces -= 1
        self.said.append(self.name)
        return self.pieces > 0


async def test_each_key_has_a_piece_read_in_a_turn():
    turns, said = Turns(), []
    for _ in range(50):
        turns.wait("busy", Piecewise("b", 3, said))
    turns.wait("other", Piecewise("o", 3, said))
    assert not turns.at_once("busy", 3000) and turns.at_once("third", 3000) and not turns.at_once("third", 3000)
    await until(lambda: len(said) == 153)
    assert said[:6] == ["b", "o"] * 3 and turns.at_once("busy", 3000)


@pytest.mark.parametrize("large", [b"text/event-stream", b"application/json"])
async def test_large_replies_of_one_key_do_not_hold_up_another_key_s_call(start, serve, tmp_path, monkeypatch, large):
    """All of them lie in the sockets, the other key's is the last: its end leaves before even one of them is read."""
    (tmp_path / "data").mkdir()
    keys = Keys(tmp_path / "data" / "keys.json")
    busy, other = ({"authorization": f"Bearer {keys.add(name, ['inference'])[1]}"} for name in ("busy", "other"))
    body = b'data: {"choices": [{"index": 0, "delta": {"content": "word"}}]}\n\n' * 3000
    go, asked, read = asyncio.Event(), [], Counter()
    on_body = ActiveCall.on_body

    def counted(call, data):
        read[call.asked.key.name] += len(data)
        on_body(call, data)

    monkeypatch.setattr(ActiveCall, "on_body", counted)

    async def engine(reader, writer):
        small = b"small" in await read_request(reader)
        asked.append(small)
        await go.wait()
        kind, reply = (b"application/json", b"{}") if small else (large, body)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(reply), reply))
        await writer.drain()

    proxy = await start(engine={"urls": [await serve(engine)]})
    replies = [asyncio.create_task(post(proxy.url, ASK, headers=busy)) for _ in range(30)]
    await until(lambda: len(asked) == 30)
    small = asyncio.create_task(post(proxy.url, {**ASK, "user": "small"}, headers=other))
    await until(lambda: len(asked) == 31)
    go.set()
    assert (await small)[0] == 200
    assert read["busy"] < 30 * len(body) / 4
    assert all([(status, len(got)) == (200, len(body)) for status, _, got in await asyncio.gather(*replies)])
    assert all([len(frame.reply) == len(body) for frame in await proxy.record(31) if frame.reply != b"{}"])
