"""Replies that go on until their reader leaves: the live state for the workers, the events for a page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["EndlessReplies"]


class EndlessReplies:
    """They end when the control plane does. Without it, its stop waits for them until its patience is over."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """The running task answers such a request meanwhile."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    async def end(self, _: object = None) -> None:
        """End all of them: for ``Application.on_shutdown``."""
        for task in self._tasks:
            task.cancel()
