from __future__ import annotations

import asyncio
import threading

from slipstream_proxy.control.shared.threads import end, in_thread, settle


async def test_a_cancelled_call_is_waited_for():
    go, done = threading.Event(), threading.Event()

    def work():
        go.wait(60)
        done.set()

    task = asyncio.ensure_future(in_thread(work))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    go.set()
    await settle()
    assert done.is_set() or task.cancelled()


async def test_a_task_that_swallows_a_cancellation_ends_too():
    swallowed = 0

    async def stubborn():
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed == 2:
                    raise

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await end([task])
    assert task.cancelled()
