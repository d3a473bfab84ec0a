"""``vllm serve`` starts wherever vLLM is installed, also under the name of its CPU build."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine


def test_the_command_line_of_vllm_serve_is_reached() -> None:
    argv = [sys.executable, "-m", "slipstream_vllm.serve", "--help=api-server-count"]
    run = subprocess.run(
        argv, check=False, capture_output=True, text=True, timeout=240, env={**os.environ, "VLLM_NO_USAGE_STATS": "1"}
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert "--api-server-count" in run.stdout
