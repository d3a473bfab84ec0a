"""A call costs a worker no more instructions than was written down, where valgrind can count them."""

from __future__ import annotations

import json
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
from benchmarks.harness import RESULTS
from benchmarks.proxy import instructions
from benchmarks.proxy.bench import compile_proxy
from benchmarks.proxy.interpreter import measured

CASE = "1k_c1"
SLACK = 1.02
"""Above what was written down."""
WINDOWS = 3
"""A loaded machine adds up to 2 % to one."""
NEEDS = ("valgrind", "callgrind_control", "cc")
MISSING = [name for name in NEEDS if shutil.which(name) is None]


@pytest.mark.timeout(1500)
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.skipif(
    not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists(), reason="Python's headers are not installed"
)
def test_a_call_costs_no_more_than_was_written_down(tmp_path):
    python = measured(sys.executable)
    assert python is not None
    builds = instructions.builds(python)
    kept = json.loads((RESULTS / "instructions.json").read_text())["kept"]
    written = next((k["instructions"][CASE] for k in kept if k["builds"] == builds), None)
    if written is None:
        pytest.skip(f"does not compare: instructions are kept for other builds than {builds}")
    compile_proxy(python)
    found = instructions.instructions(tmp_path, python, [CASE], windows=WINDOWS)[CASE]["Ir"]
    assert found < written * SLACK, f"{found:.0f} instructions, {written} were written down"
