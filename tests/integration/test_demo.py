"""The demo on the shared engine: a short learning run, through everything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.support import slipstream, wait_for

from slipstream.client import Client

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


def steps(client: Client) -> int:
    return sum(event.kind == "step" for event in client.events())


@pytest.mark.slow
def test_kept_it_goes_on_learning(engine, tmp_path: Path) -> None:
    flags = ["--set", f'engine.urls=["{engine.url}"]', "--data-dir", str(tmp_path), "--time-limit", "20", "--keep"]
    with (tmp_path / "told").open("w") as told:
        ran = subprocess.Popen(slipstream("demo", *flags), stdout=subprocess.PIPE, stderr=told, text=True)
    try:
        assert ran.stdout is not None
        line = ran.stdout.readline()  # it comes while the rest goes on
        assert line, (tmp_path / "told").read_text()[-3000:]
        url = json.loads(next(tmp_path.rglob("proxy.json")).read_text())["url"]
        with Client(url) as client:
            before = json.loads(line)["steps"]
            wait_for(lambda: steps(client) > before, 400, 1.0, "the trainer learns after the summary")
            assert not [line for line in client.status().waiting if "has not asked for work" in line]
        ran.send_signal(signal.SIGINT)
        assert ran.wait(60) == 0
    finally:
        ran.kill()
        ran.wait()
