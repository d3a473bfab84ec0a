"""What a child process and its parent owe each other."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

PR_SET_PDEATHSIG = 1


def _load() -> ctypes.CDLL | None:
    with contextlib.suppress(OSError):
        return ctypes.CDLL(None, use_errno=True)
    return None


LIBC_LIBRARY = _load()
"""Loaded before any fork: a forked child of a process with threads must not load libraries."""


def die_with_parent(sent: signal.Signals, parent: int) -> None:
    """Between fork and exec: the kernel sends ``sent`` to this process when its parent ends, however it ends
    (prctl(2)).

    ``parent`` is the parent's process id. If it is gone already, this process ends at once: then it died before we
    asked. Where there is no
    prctl (macOS) a child outlives a parent that is killed.
    """
    if LIBC_LIBRARY is not None and hasattr(LIBC_LIBRARY, "prctl"):
        LIBC_LIBRARY.prctl(PR_SET_PDEATHSIG, sent)
    if os.getppid() != parent:
        os._exit(1)


def reap_group(pid: int, sig: signal.Signals) -> None:
    """Signal the process group of ``pid``, if there is one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, sig)


def how_ended(code: int | None) -> str:
    """What a process did that has this return code, in words: `ended with exit code 1`."""
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"was ended by signal {-code}"


def cpu_seconds(pid: int) -> float | None:
    """CPU time of a process and its children; None: it cannot be told here."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        spent = (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")
        children = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    except (OSError, ValueError, IndexError):
        return None
    return spent + sum(cpu_seconds(int(child)) or 0.0 for child in children.split())


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
