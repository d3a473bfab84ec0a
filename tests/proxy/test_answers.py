"""An engine's answers to our own questions are read up to a bound."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest

from slipstream.config import Config
from slipstream.settings import EngineConfig
from slipstream_proxy.answers import ANSWER_BYTES, whole_answer
from slipstream_proxy.control.shared.token_text import TokenTexter
from slipstream_proxy.data.call.contexts import ContextLengths

SOME_BYTES = 2**16


class EndlessEngine:
    """Answers each question without an end."""

    def __init__(self) -> None:
        self.sent = 0
        self.url = ""
        self.left = asyncio.Event()

    async def start(self) -> EndlessEngine:
        self.server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b" " * SOME_BYTES)
                self.sent += SOME_BYTES
                await writer.drain()
        self.left.set()

    async def is_left(self) -> None:
        async with asyncio.timeout(20):
            await self.left.wait()


@pytest.fixture
async def engine():
    made = await EndlessEngine().start()
    yield made
    made.server.close()


async def test_an_answer_ends_at_its_bound(engine):
    async with aiohttp.ClientSession() as session, session.get(engine.url) as reply:
        with pytest.raises(aiohttp.ClientPayloadError, match="more than 100000 bytes"):
            await whole_answer(reply, 100_000)
    await engine.is_left()


async def test_a_worker_s_questions_end_at_theirs(engine):
    facts = ContextLengths(EngineConfig(urls=[engine.url], name="tiny", kind="vllm"), 30.0)
    await facts._ask(engine.url)
    await engine.is_left()
    assert engine.sent < 3 * ANSWER_BYTES


async def test_a_token_s_text_is_short(engine, tmp_path):
    config = Config.model_validate({"data_dir": str(tmp_path), "engine": {"urls": [engine.url], "name": "tiny"}})
    told = await TokenTexter(config).texts("tiny", [[7]], [engine.url])
    assert told.texts is None and "does not tell" in str(told.why)
    await engine.is_left()
    assert engine.sent < ANSWER_BYTES
