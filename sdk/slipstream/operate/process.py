"""What a child process and its parent owe each other."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(sent: signal.Signals = signal.SIGTERM, parent: str | None = None) -> None:
    """Linux: the kernel sends ``sent`` to this process when its parent ends, however it ends (prctl(2)); nothing where there is no prctl.

    ``parent`` is the process id that the parent should have: exits when another one is there already, for then it died before we asked.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, sent)
    if parent is not None and str(os.getppid()) != parent:
        sys.exit(1)
