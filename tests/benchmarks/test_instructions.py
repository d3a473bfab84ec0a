"""A call costs a worker no more instructions than was written down, where valgrind can count them."""

from __future__ import annotations

import json
import shutil
import sysconfig
from pathlib import Path

import pytest
from benchmarks.harness import RESULTS
from benchmarks.proxy import instructions
from benchmarks.proxy.bench import compile_proxy
from benchmarks.proxy.interpreter import fastest

CASE = "1k_c1"
SLACK, ELSEWHERE_SLACK = 1.02, 1.25
"""Above what was written down: with the same builds of what a worker is made of, and with others."""
NEEDS = ("valgrind", "callgrind_control", "cc")
MISSING = [name for name in NEEDS if shutil.which(name) is None]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.skipif(
    not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists(), reason="Python's headers are not installed"
)
def test_a_call_costs_no_more_than_was_written_down(tmp_path):
    written = json.loads((RESULTS / "instructions.json").read_text())
    python = fastest()
    compile_proxy(python)
    found = instructions.instructions(tmp_path, python, [CASE])[CASE]["Ir"]
    same = written["builds"] == instructions.builds(python)
    assert found < written["instructions"][CASE] * (SLACK if same else ELSEWHERE_SLACK), found
