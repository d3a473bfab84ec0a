"""Blocking calls in threads that can be waited for: a thread outlives its cancelled task, and needs the store open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
Pool = ThreadPoolExecutor
_POOL = Pool(16, thread_name_prefix="control")
READS_POOL = Pool(8, thread_name_prefix="reads")
"""What agents' keys read. However slow that is, changes and the operator's questions have threads of their own."""
SEARCHES_POOL = Pool(2, thread_name_prefix="searches")
"""Searches read whole conversations: two of them keep two cores busy."""
_CHOSEN: ContextVar[Pool | None] = ContextVar("pool", default=None)
_RUNNING: set[Future[Any]] = set()


async def in_thread(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """``asyncio.to_thread`` that ``settle`` knows of."""
    future = (_CHOSEN.get() or _POOL).submit(partial(call, *args, **kwargs))
    _RUNNING.add(future)
    future.add_done_callback(_RUNNING.discard)
    return await asyncio.wrap_future(future)


@contextmanager
def in_pool(pool: Pool | None) -> Iterator[None]:
    """Calls of the block run in its threads. None: in those for all the rest."""
    token = _CHOSEN.set(pool)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel until it works. Python 3.11's ``wait_for`` loses a cancellation that comes together with its result."""
    while left := [t for t in tasks if not t.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.2)


async def settle() -> None:
    """Wait until no call is running any more."""
    while running := [f for f in list(_RUNNING) if not f.done()]:
        await asyncio.wait([asyncio.ensure_future(_quietly(f)) for f in running])


async def _quietly(future: Future[Any]) -> None:
    while not future.done():
        await asyncio.sleep(0.01)
