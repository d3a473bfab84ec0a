from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import wait_for

from slipstream.shared.processes.process import die_with_parent, is_alive

CHILD = """
import os, signal, sys, time
from slipstream.shared.processes.process import die_with_parent
signal.signal(signal.SIGUSR1, lambda *_: (open(sys.argv[1], "w").write("told"), os._exit(0)))
die_with_parent(signal.SIGUSR1, os.getppid())
print("ready", flush=True)
time.sleep(120)
"""
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], stdout=subprocess.PIPE)
child.stdout.readline()
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_the_signal_comes_when_the_parent_is_killed(tmp_path: Path) -> None:
    said = tmp_path / "said"
    done = subprocess.run([sys.executable, "-c", PARENT, CHILD, str(said)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    wait_for(lambda: said.read_text() == "told", 60, 0.05, "the child was told")


def test_a_parent_that_died_before_is_no_parent() -> None:
    script = "import signal; from slipstream.shared.processes.process import die_with_parent; die_with_parent(signal.SIGTERM, 1); print('on')"
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    fine = script.replace(", 1)", f", {os.getpid()})")
    done = subprocess.run([sys.executable, "-c", fine], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "on\n")


def test_without_prctl_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.shared.processes.process.LIBC_LIBRARY", None)
    die_with_parent(signal.SIGTERM, os.getppid())


def test_who_is_alive() -> None:
    child = subprocess.Popen(["sleep", "600"])
    assert is_alive(os.getpid()) and is_alive(child.pid)
    assert is_alive(1)  # somebody else's
    child.kill()
    child.wait()
    assert not is_alive(child.pid)
