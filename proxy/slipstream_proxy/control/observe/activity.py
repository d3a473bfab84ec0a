"""The sidecars and their last signs: they are processes of their own, and only requests show that they run."""

from __future__ import annotations

import time
from typing import Literal

from slipstream.shared.processes.process import cpu_seconds

Role = Literal["judge", "trainer"]

BUSY_CPU_SHARE = 0.01
"""Of a CPU: a process with work to do takes more, also while a GPU computes."""

SIDECAR_TIMEOUT_S = 45.0
"""Seconds without a request after which a sidecar is away. Idle, it asks every few seconds; at work it has a lease."""


class SidecarActivity:
    """Times are monotonic. In memory only: after a restart every sidecar gets ``SIDECAR_TIMEOUT_S`` seconds to show
    up.
    """

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.engine_up = 0.0
        """When an engine was up first, for which sidecars wait; infinity: none was yet."""
        self._last: dict[Role, float] = {}
        self._computed: dict[Role, tuple[int, float, float]] = {}
        """Its process id, its CPU time, and when that had grown."""
        self.pace: tuple[int, float] | None = None
        """Groups that the trainer asked for last, and seconds after which it takes fewer."""

    def seen(self, role: Role) -> None:
        self._last[role] = time.monotonic()

    def still(self, role: Role, pid: int | None) -> float:
        """Seconds for which its process has computed next to nothing, as far as that was looked at, since it last asked
        for work.
        """
        spent, now = cpu_seconds(pid) if pid else None, time.monotonic()
        if spent is None or pid is None:
            return 0.0
        before = self._computed.get(role)
        if before is None or before[0] != pid or spent - before[1] > 0.05 + BUSY_CPU_SHARE * (now - before[2]):
            before = self._computed[role] = pid, spent, now
        return min(now - before[2], self.silence(role))

    def ever(self, role: Role) -> bool:
        return role in self._last

    def silence(self, role: Role) -> float:
        """Seconds since its last request, or since the control plane started; none before an engine was up."""
        return max(0.0, time.monotonic() - max(self._last.get(role, self.started), self.engine_up))

    def away(self, role: Role) -> bool:
        return self.silence(role) > SIDECAR_TIMEOUT_S
