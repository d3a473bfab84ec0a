"""Pauses that grow, and that a signal cuts short."""

from __future__ import annotations

import asyncio
import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from slipstream.shared.backoff import Backoff, rest

seconds = st.floats(0.001, 100)


@given(first=seconds, more=seconds, factor=st.floats(1.01, 10), tries=st.integers(1, 60))
def test_pauses_grow_up_to_the_most(first: float, more: float, factor: float, tries: int) -> None:
    backoff = Backoff(first, first + more, factor)
    pauses = [backoff.next() for _ in range(tries)]
    assert pauses[0] == first
    assert all(a <= b <= first + more for a, b in zip(pauses, pauses[1:], strict=False))
    assert all(b == first + more or abs(b / a - factor) < 1e-9 for a, b in zip(pauses, pauses[1:], strict=False))
    backoff.reset()
    assert backoff.next() == first


def test_a_thread_waits_until_it_is_stopped() -> None:
    stop = threading.Event()
    assert not Backoff(0.01, 1).wait(stop)
    stop.set()
    began = time.monotonic()
    assert Backoff(60, 60).wait(stop)
    assert time.monotonic() - began < 30


async def test_a_task_is_woken() -> None:
    wake = asyncio.Event()
    assert not await Backoff(0.01, 1).sleep(wake)
    assert not await rest(0.0)
    asyncio.get_running_loop().call_later(0.01, wake.set)
    async with asyncio.timeout(30):
        assert await Backoff(60, 60).sleep(wake)
