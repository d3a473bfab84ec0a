"""When judge and trainer last asked for work. They are processes of their own: only requests show that they run."""

from __future__ import annotations

import time
from typing import Literal

Role = Literal["judge", "trainer"]
SILENCE = 45.0
"""Seconds without a request after which a sidecar is away. Idle, it asks every few seconds; at work it has a lease."""


class SidecarActivity:
    """Times are monotonic. In memory only: after a restart every sidecar gets ``SILENCE`` seconds to show up."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self._last: dict[Role, float] = {}

    def seen(self, role: Role) -> None:
        self._last[role] = time.monotonic()

    def ever(self, role: Role) -> bool:
        return role in self._last

    def silence(self, role: Role) -> float:
        """Seconds since its last request, or since the control plane started."""
        return time.monotonic() - self._last.get(role, self.started)

    def away(self, role: Role) -> bool:
        return self.silence(role) > SILENCE
