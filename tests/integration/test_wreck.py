"""A learning rate ten times too high, through the whole stack: the guards keep the policy from ending below its start."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.support import slipstream

NOISE = 0.08
"""Two standard deviations of the difference of two success rates over 256 tasks."""


@pytest.mark.learning
@pytest.mark.engine
@pytest.mark.timeout(1200)
def test_ten_times_the_learning_rate_does_not_wreck_the_policy(engine, tmp_path: Path) -> None:
    flags = [
        "--set",
        f'engine.urls=["{engine.url}"]',
        "--set",
        "trainer.learning_rate=1e-2",
        "--data-dir",
        str(tmp_path),
        "--time-limit",
        "120",
    ]
    ran = subprocess.run(slipstream("demo", *flags), capture_output=True, text=True, timeout=1100, check=False)
    logs = "".join(f.read_text()[-6000:] for f in tmp_path.rglob("demo.log"))
    assert ran.returncode == 0, ran.stderr[-3000:] + logs
    summary = json.loads(ran.stdout.strip().splitlines()[-1])
    print(summary)
    assert summary["failed_calls"] == 0
    assert summary["success_last"] >= summary["success_base"] - NOISE, ran.stderr[-2000:] + logs
    assert "undone" in logs or summary["steps"] >= 3, logs
