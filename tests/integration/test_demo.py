"""The demo on the shared engine: a short learning run, through everything."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from tests.support import slipstream, wait_for

from slipstream.client import Client

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


def steps(client: Client) -> int:
    return sum(event.kind == "step" for event in client.events())


def test_the_agent_gets_better_and_goes_on(engine, tmp_path: Path) -> None:
    flags = ["--set", f'engine.urls=["{engine.url}"]', "--data-dir", str(tmp_path), "--time-limit", "30", "--keep"]
    told = (tmp_path / "told").open("w+")
    ran = subprocess.Popen(slipstream("demo", *flags), stdout=subprocess.PIPE, stderr=told, text=True)
    try:
        assert ran.stdout is not None
        line = ran.stdout.readline()  # while it goes on
        told.seek(0)
        logs = told.read()[-3000:] + "".join(f.read_text()[-4000:] for f in tmp_path.rglob("demo.log"))
        assert line, logs
        summary = json.loads(line)
        url = json.loads(next(tmp_path.rglob("proxy.json")).read_text())["url"]
        with Client(url) as client:
            wait_for(lambda: steps(client) > summary["steps"], 400, 1.0, "the trainer learns after the summary")
            assert not [line for line in client.status().waiting if "has not asked for work" in line]
        ran.send_signal(signal.SIGINT)
        assert ran.wait(60) == 0
    finally:
        ran.kill()
        ran.wait()
        told.seek(0)
        err = told.read()
    assert {"success_base", "success_last", "train_seconds", "steps", "calls", "failed_calls", "seed"} <= set(summary)
    assert summary["failed_calls"] == 0, err[-3000:]
    assert summary["recorded"] >= summary["calls"]
    assert summary["steps"] >= 2, logs
    assert summary["success_base"] <= 0.35
    # a few steps: that an agent learns in minutes is what `make first-hour-ci` shows
    assert summary["success_last"] >= summary["success_base"] - 0.05, err[-2000:]
    assert (tmp_path / "seed-0" / "success.png").stat().st_size > 5000
