"""A reply on its way to the coroutine that writes it."""

from __future__ import annotations

import asyncio

from slipstream_proxy.data.wire.sink import ABORT_MARK, END_MARK, QueueSink


class Call:
    def __init__(self) -> None:
        self.told = []

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")


async def test_a_stream_comes_in_order():
    sink = QueueSink()
    sink.send_head(200, b"a: b\r\n")
    sink.send_part(b"1")
    sink.send_end(b"2")
    assert await sink.head() == (200, b"a: b\r\n", None, False)
    assert [await sink.take() for _ in range(3)] == [b"1", b"2", END_MARK]
    sink.break_off()
    assert await sink.take() is ABORT_MARK


async def test_a_whole_reply_is_waited_for():
    sink = QueueSink()
    waiting = asyncio.create_task(sink.head())
    await asyncio.sleep(0)
    sink.send_whole(404, b"", b"no", close=True)
    assert await waiting == (404, b"", b"no", True)


async def test_an_engine_that_is_faster_than_its_client_is_paused():
    sink, call = QueueSink(), Call()
    sink.call = call  # type: ignore[assignment]
    for _ in range(5):
        sink.send_part(b"x" * 65536)
    assert call.told and set(call.told) == {"pause"}
    for _ in range(5):
        await sink.take()
    assert call.told[-1] == "resume"
