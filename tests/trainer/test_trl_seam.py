from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_trl_is_imported_without_vllm() -> None:
    code = "import sys, slipstream_trainer.step.trl_seam; assert 'vllm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240, env={"PYTHONPATH": ":".join(sys.path)})
