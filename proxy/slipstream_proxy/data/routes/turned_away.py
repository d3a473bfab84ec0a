"""A key that the control plane has turned away waits as long as it was told.

If it asked again at once, a thousand times a second, the refusals alone would keep both processes busy.
"""

from __future__ import annotations

import asyncio
from typing import Final

from slipstream_proxy.data.wire.errors import RequestRefused

MOST_HELD_S: Final = 5.0
"""Seconds for which a request that comes too soon is held."""
MOST_KEPT: Final = 1024
Asked = tuple[str, str, str]
"""A key's id, a method and the beginning of a path."""


def asked(key: str, method: str, path: str) -> Asked:
    return key, method, "/".join(path.split("/", 4)[:4])


class TurnedAway:
    """What one worker was told."""

    def __init__(self) -> None:
        self._until: dict[Asked, float] = {}

    def note(self, what: Asked, retry_after: str) -> None:
        """The control plane said 429, and ask again in so many seconds."""
        if len(self._until) >= MOST_KEPT:
            self._until.clear()
        wait = float(retry_after) if retry_after.isdecimal() else 1.0
        self._until[what] = asyncio.get_running_loop().time() + wait

    async def check(self, what: Asked) -> None:
        """Raises ``RequestRefused`` if this comes too soon, and not at once."""
        until = self._until.get(what)
        if until is None:
            return
        left = until - asyncio.get_running_loop().time()
        if left <= 0:
            self._until.pop(what, None)
            return
        await asyncio.sleep(min(left, MOST_HELD_S))
        why = "this key was rate-limited and retried before its Retry-After had passed"
        raise RequestRefused(
            429, why, fix="wait for as long as retry-after says, and ask less at once", retry_after=1.0
        )
