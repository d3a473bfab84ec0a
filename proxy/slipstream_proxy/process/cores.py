"""The core that a process's threads share.

Threads of one Python process take turns anyway. Where each turn wakes another core, the hand-over costs more than the
turn: on 16 cores the control plane took 7.7 ms of CPU a run with its threads anywhere, 4.3 ms with them on one core.
The system moves other work away from that core.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

MIN_PINNED_CORES = 4
"""With fewer cores than this the system places threads well enough, and one of them would be missed."""
_before: set[int] | None = None
"""Cores that this process might use before it chose one."""


def share_one() -> int | None:
    """Keep this thread, and those that it starts, on one core. → Its number; None: too few cores, or not on Linux.

    Which one depends on the process's id, so that several processes choose several. The first is left to the system's
    own work.
    """
    global _before
    if not hasattr(os, "sched_setaffinity"):
        return None
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < MIN_PINNED_CORES:
        return None
    core = allowed[1 + os.getpid() % (len(allowed) - 1)]
    os.sched_setaffinity(0, {core})
    _before = set(allowed)
    return core


@contextmanager
def anywhere() -> Iterator[None]:
    """What this thread starts meanwhile, a process for instance, may use all cores again."""
    if _before is None:
        yield
        return
    here = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, here)
