"""SkyPilot's own reading of its files. It needs an environment of its own (`make test-deploy` makes it): its requirements are many."""

from __future__ import annotations

import os
import subprocess

import pytest
from tests.support import ROOT
from tests.support.rendering import DEPLOY

PYTHON = ROOT / ".venv-sky" / "bin" / "python"
pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(not PYTHON.is_file(), reason="SkyPilot is not here (make test-deploy)"),
]
READ = """
import sys, yaml, sky
read = yaml.safe_load(open(sys.argv[1]))
env = [(k, "x") for k, v in read.get("envs", {}).items() if v is None]
secrets = [(k, "x") for k, v in read.get("secrets", {}).items() if v is None]
task = sky.Task.from_yaml_config(read, env_overrides=env, secrets_overrides=secrets)
print(task.name, sorted(task.envs), sorted(a for r in task.resources for a in r.accelerators))
"""


def read(path, tmp_path):
    argv = [str(PYTHON), "-c", READ, str(path)]
    return subprocess.run(
        argv,
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HOME": str(tmp_path)},
    )


GPUS = "['A100-80GB', 'H100', 'L40S']"


@pytest.mark.parametrize(
    "name, called, gpus",
    [
        ("all-in-one", "slipstream", GPUS),
        ("trainer", "slipstream-trainer", GPUS),
        ("trainer-nodes", "slipstream-trainer-nodes", "['A100-80GB', 'H100', 'H200']"),
    ],
)
def test_it_is_a_task(name, called, gpus, tmp_path):
    done = read(DEPLOY / "skypilot" / f"{name}.yaml", tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith(f"{called} [") and done.stdout.strip().endswith(gpus)


@pytest.mark.parametrize(
    "old, new",
    [("resources:", "resourcess:"), ("accelerators:", "acelerators:"), ("disk_size: 256", "disk_size: much")],
)
def test_that_check_can_fail(old, new, tmp_path):
    text = (DEPLOY / "skypilot" / "trainer.yaml").read_text()
    assert old in text
    (tmp_path / "wrong.yaml").write_text(text.replace(old, new))
    assert read(tmp_path / "wrong.yaml", tmp_path).returncode != 0
