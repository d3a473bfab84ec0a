"""The demo on the shared engine: a short learning run, through everything."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.support import slipstream

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


def test_the_agent_gets_better(engine, tmp_path: Path) -> None:
    flags = ["--set", f'engine.urls=["{engine.url}"]', "--data-dir", str(tmp_path), "--time-limit", "30"]
    ran = subprocess.run(
        slipstream("demo", *flags), capture_output=True, text=True, timeout=840, env=dict(os.environ), check=False
    )
    logs = "".join(f.read_text()[-4000:] for f in tmp_path.rglob("demo.log"))
    assert ran.returncode == 0, ran.stderr[-3000:] + logs
    summary = json.loads(ran.stdout.strip().splitlines()[-1])
    assert {"success_base", "success_last", "train_seconds", "steps", "calls", "failed_calls", "seed"} <= set(summary)
    assert summary["failed_calls"] == 0, ran.stderr[-3000:]
    assert summary["recorded"] >= summary["calls"]
    assert summary["steps"] >= 2, logs
    assert summary["success_base"] <= 0.35
    # a few steps: that an agent learns in minutes is what `make first-hour-ci` shows
    assert summary["success_last"] >= summary["success_base"] - 0.05, ran.stderr[-2000:]
    assert (tmp_path / "seed-0" / "success.png").stat().st_size > 5000
