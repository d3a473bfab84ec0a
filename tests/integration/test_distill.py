"""An agent on another model, its stored calls, and an adapter of our own that has learned from them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.traffic.distill import TEACHER, Teacher
from tests.support import slipstream, wait_for
from tests.support.running import run_proxy
from tests.support.served import Served

from slipstream.client import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
RUNS = 24


async def work(url: str) -> float:
    """The inbox agent asks for the teacher's model. → Its mean reward."""
    from inbox.agent import make_client, make_tasks, run_episode

    client = make_client(f"{url}/v1", api_key="none")
    tasks = make_tasks("train", RUNS)
    async with client:
        found = [await run_episode(client, task, episode_id=task.id, model=TEACHER) for task in tasks]
    return sum(r.reward for r in found) / RUNS


def test_stored_calls_of_an_upstream_become_a_version_at_the_proxy(tmp_path: Path) -> None:
    with Served(Teacher(0, slips=0.4).app()) as upstream:
        models = {TEACHER: {"upstream": f"{upstream}/v1"}}
        with run_proxy(tmp_path, f"{upstream}/v1", models=models) as proxy, Client(proxy.url) as client:
            good = asyncio.run(work(proxy.url))
            assert 0.5 < good < 1.0, "some of the teacher's runs fail"
            sql = "SELECT count(*) FROM episodes WHERE reward IS NOT NULL"
            wait_for(lambda: client.sql(sql).rows[0][0] == RUNS, 60, 0.2, "all runs are stored")
            command = slipstream("distill", "--config", str(proxy.config), "--from", TEACHER, "--json")
            none = subprocess.run([*command, "--task", "nobody"], capture_output=True, text=True, check=False)
            assert none.returncode == 2 and "no stored run with task nobody, model teacher" in none.stderr
            ran = subprocess.run([*command, "--epochs", "2"], capture_output=True, text=True, check=False)
            assert ran.returncode == 0, ran.stderr[-3000:]
            figures = json.loads(ran.stdout.splitlines()[-1])
            assert figures["runs"] == round(good * RUNS)
            assert figures["left_out"] == {"not_chosen": RUNS - figures["runs"]}
            assert figures["loss"] < figures["loss_base"]
            (version,) = client.adapters().adapters
            assert (version.name, version.state) == (figures["adapter"], "loading")
            assert version.meta["distilled_from"] == TEACHER
            assert (proxy.data_dir / "adapters" / version.path / "adapter_model.safetensors").is_file()


@pytest.mark.engine
@pytest.mark.learning
def test_the_adapter_does_nearly_as_well_as_its_teacher(tmp_path: Path) -> None:
    bench = [sys.executable, "-m", "benchmarks.traffic.distill", "--runs", "256", "--data-dir", str(tmp_path)]
    ran = subprocess.run(bench, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["distill"] >= 0.95, found
    assert found["base"] < 0.4 and found["gate"] == "live", found
