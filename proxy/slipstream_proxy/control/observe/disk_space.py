"""What the data folder takes, as it is now."""

from __future__ import annotations

import asyncio
import math
import time

from slipstream.config import Config
from slipstream.contract.status import Space
from slipstream.shared.files import space_of
from slipstream_proxy.control.shared.threads import in_thread

MEASURED_SECONDS = 5.0
"""For so long a measurement is good: the page asks for the status all the time."""
PATIENCE_SECONDS = 2.0
"""A status waits so long for a large folder; then it shows what was measured last."""


class DiskSpace:
    def __init__(self, config: Config) -> None:
        self.config = config
        self._last = Space()
        self._measured = -math.inf
        """When that was, by the monotonic clock."""
        self._running: asyncio.Task[None] | None = None

    async def measured(self, *, fresh: bool = False) -> Space:
        """``fresh``: measured now, however long that takes."""
        running = self._running
        if running is None or running.done():
            if not fresh and time.monotonic() - self._measured < MEASURED_SECONDS:
                return self._last
            running = self._running = asyncio.create_task(self._measure(), name="space")
        await asyncio.wait({running}, timeout=None if fresh else PATIENCE_SECONDS)
        return self._last

    async def _measure(self) -> None:
        config = self.config
        parts = await in_thread(space_of, config.root, config.adapters_dir)
        limit = None if config.data.max_gb is None else round(config.data.max_gb * 1e9)
        self._last, self._measured = Space(parts=parts, limit=limit), time.monotonic()
