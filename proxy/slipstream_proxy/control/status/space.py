"""What the data folder takes, as it is now."""

from __future__ import annotations

import asyncio
import time

from slipstream.contract.status import Space
from slipstream.shared.files import space_of
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.shared.threads import in_thread

MEASURED_SECONDS = 5.0
"""For so long a measurement is good: the page asks for the status all the time."""
PATIENCE_SECONDS = 2.0
"""A status waits so long for a large folder; then it shows what was measured last."""


async def measured_space(deps: Deps, *, fresh: bool = False) -> Space:
    """``fresh``: measured now, however long that takes."""
    running = deps.measuring
    if running is None or running.done():
        if not fresh and time.monotonic() - deps.space_measured < MEASURED_SECONDS:
            return deps.space
        running = deps.measuring = asyncio.create_task(_measure(deps), name="space")
    await asyncio.wait({running}, timeout=None if fresh else PATIENCE_SECONDS)
    return deps.space


async def _measure(deps: Deps) -> None:
    config = deps.config
    parts = await in_thread(space_of, config.root, config.adapters_dir)
    limit = None if config.data.max_gb is None else round(config.data.max_gb * 1e9)
    deps.space, deps.space_measured = Space(parts=parts, limit=limit), time.monotonic()
