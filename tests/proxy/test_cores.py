"""The core that the control plane's threads share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
ALL = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
several = pytest.mark.skipif(len(ALL) < 2, reason="one core has nothing to share")


def in_a_process(code: str) -> list[str]:
    """What a new process prints, by words."""
    script = f"import os, subprocess, sys, threading\nfrom slipstream_proxy.process import cores\n{code}"
    run = [sys.executable, "-c", script]
    return subprocess.run(
        run, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ).stdout.split()


SHOW = "print(len(os.sched_getaffinity(0)), flush=True)"
CHILD = f'subprocess.run([sys.executable, "-c", "import os; {SHOW}"], check=True)'


@several
def test_threads_share_one_core_and_processes_may_use_all():
    code = f"""
cores.MIN_PINNED_CORES = 2
core = cores.share_one()
assert os.sched_getaffinity(0) == {{core}}
def work():
    {SHOW}
    {CHILD}
    with cores.anywhere():
        {CHILD}
    {SHOW}
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    assert in_a_process(code) == ["1", "1", str(len(ALL)), "1"]


@several
def test_processes_choose_several_cores_and_leave_the_first_one():
    code = """
cores.MIN_PINNED_CORES = 2
allowed = set()
chosen = set()
os.sched_getaffinity, whole = lambda _: {3, 5, 7, 9}, os.sched_getaffinity
os.sched_setaffinity = lambda _, some: chosen.update(some)
for pid in range(12):
    os.getpid = lambda: pid
    cores.share_one()
print(*sorted(chosen))
"""
    assert in_a_process(code) == ["5", "7", "9"]


def test_with_few_cores_the_system_places_the_threads():
    code = f"""
cores.MIN_PINNED_CORES = {len(ALL) + 1}
print(cores.share_one())
with cores.anywhere():
    {SHOW}
"""
    assert in_a_process(code) == ["None", str(len(ALL))]


def test_elsewhere_nothing_is_chosen():
    assert in_a_process("del os.sched_setaffinity\nprint(cores.share_one())") == ["None"]
