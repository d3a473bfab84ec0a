"""Does the process that listens on a Unix socket stand still?

One that is slow computes, or waits for a CPU or a disk. One that is stopped or deadlocked does neither.

Not compiled: it runs only when the control plane does not answer.
"""

from __future__ import annotations

import re
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")
_STATE: Final = re.compile(r"^State:\s+(\S)", re.MULTILINE)
_SWITCHES: Final = re.compile(r"ctxt_switches:\s+(\d+)")
_STOPPED: Final = frozenset("Tt")
_ASLEEP: Final = frozenset("SI")


def listener_of(path: Path) -> int | None:
    """The id of the process that listens there; None: nobody does, or this system does not tell."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        try:
            sock.connect(str(path))
            told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except (OSError, AttributeError):
            return None
    return int(_CREDENTIALS.unpack(told)[0])


@dataclass(frozen=True, slots=True)
class Pulse:
    """What a process did until now: the states of its threads, and how often one of them got or gave back a CPU."""

    states: frozenset[str]
    switches: int


def pulse_of(pid: int | None) -> Pulse | None:
    """None: there is no such process, or this system does not tell."""
    if pid is None:
        return None
    try:
        texts = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return None
    return read_pulse(texts)


def read_pulse(texts: list[str]) -> Pulse | None:
    """What the threads' ``status`` files say. None: they do not count switches, as in gVisor's sandboxes."""
    switches = [int(n) for text in texts for n in _SWITCHES.findall(text)]
    states = frozenset(state for text in texts for state in _STATE.findall(text))
    return Pulse(states, sum(switches)) if switches and states else None


def stands_still(before: Pulse | None, now: Pulse | None) -> bool:
    """Whether it did nothing from ``before`` to ``now``, and waited for neither a CPU nor a disk."""
    if before is None or now is None:
        return False
    if now.states <= _STOPPED:
        return True
    return now.switches == before.switches and (before.states | now.states) <= _ASLEEP
