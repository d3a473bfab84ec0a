"""The inbox agent trained by RULER alone, beside a run with the true reward."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.learning
@pytest.mark.timeout(2400)
def test_ruler_teaches_nearly_as_well_as_the_true_reward(tmp_path):
    command = [sys.executable, "-m", "benchmarks.judge.bench_ruler", "--data-dir", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=2300, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.strip().splitlines()[-1])
    assert found["judge_calls"] > 0
    assert found["success_ruler"] >= 0.9 * found["success_reward"], found
    assert found["success_ruler"] > found["success_base"] + 0.1, found
