"""Which processes stand still: a stopped and a deadlocked one, and no busy, waiting or starved one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream_proxy.data.engines.standstill import Pulse, listener_of, pulse_of, read_pulse, stands_still

LISTEN = """
import socket, sys, threading, time
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen(8)
print("up", flush=True)
"""
DO = {
    "busy": "while True: pass",
    "waits": "while True: time.sleep(0.02)",
    "deadlocked": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
}


@pytest.mark.parametrize("does", [*DO, "stopped"])
def test_a_listener(tmp_path: Path, does: str) -> None:
    path = tmp_path / "s"
    code = LISTEN + DO.get(does, DO["busy"])
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            assert listener_of(path) == other.pid
            if does == "stopped":
                os.kill(other.pid, signal.SIGSTOP)
            end, still = time.monotonic() + 30.0, False
            while (
                not still
                and time.monotonic() < end
                and (does in ("stopped", "deadlocked") or end - 28 > time.monotonic())
            ):
                before = pulse_of(other.pid)
                time.sleep(0.4)
                still = stands_still(before, pulse_of(other.pid))
            assert still == (does in ("stopped", "deadlocked"))
        finally:
            other.kill()
    assert listener_of(path) is None and pulse_of(other.pid) is None


def test_who_waits_for_a_cpu_or_a_disk_does_not_stand_still() -> None:
    asleep = Pulse(frozenset("S"), 7)
    assert stands_still(asleep, asleep)
    for state in "RD":
        assert not stands_still(asleep, Pulse(frozenset({"S", state}), 7))
        assert not stands_still(Pulse(frozenset({"S", state}), 7), asleep)
    assert not stands_still(asleep, Pulse(frozenset("S"), 8))
    assert not stands_still(None, asleep) and not stands_still(asleep, None)


def test_a_system_that_counts_no_switches_tells_nothing() -> None:
    asleep = "Name:\tpython\nState:\tS (sleeping)\nThreads:\t2\n"
    assert read_pulse([asleep, asleep]) is None, "who only seems to sleep would be taken for one that hangs"
    counted = asleep + "voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t2\n"
    assert read_pulse([counted, counted]) == Pulse(frozenset("S"), 14)


def test_nobody_listens(tmp_path: Path) -> None:
    assert listener_of(tmp_path / "none") is None and pulse_of(None) is None
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(tmp_path / "own"))
        own.listen(1)
        assert listener_of(tmp_path / "own") == os.getpid()
