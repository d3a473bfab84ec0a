"""A trainer over several machines: what Slurm's, SkyPilot's and JobSet's files start, read by torchrun's and the trainer's own parsers."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.rendering import DEPLOY, OWN_ENV, is_setting
from torch.distributed.run import get_args_parser

from slipstream.cli import build_parser
from slipstream.cli.start.trainer import OWN_RENDEZVOUS_ENV

JOBSET = DEPLOY / "kubernetes" / "components" / "trainer-nodes" / "trainer.yaml"
SBATCH, SKY = DEPLOY / "slurm" / "trainer.sbatch", DEPLOY / "skypilot" / "trainer-nodes.yaml"
SAYS = (
    '#!/bin/sh\nfor word in "$@"; do echo "$word"; done > "$SAID"; env | grep -E "^(SLIPSTREAM|TORCH)_" > "$SAID.env"\n'
)
NODES = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5", "SKYPILOT_NUM_GPUS_PER_NODE": "8"}  # fmt: skip
"""What SkyPilot sets on the second of two nodes (https://docs.skypilot.co/en/latest/running-jobs/environment-variables.html)."""
SLURM = {"SLURM_JOB_NODELIST": "gpu[04-05]", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "8", "SLURM_JOB_ID": "77", "SLURM_SUBMIT_DIR": "/shared"}  # fmt: skip
"""What Slurm sets in a job (man sbatch, OUTPUT ENVIRONMENT VARIABLES)."""


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def started(script: str, tmp_path: Path, env: dict[str, str]) -> tuple[Any, dict[str, str]]:
    """torchrun's arguments and the settings that a script gives; ``srun`` and ``torchrun`` only say what they get."""
    program(tmp_path / "bin", "srun", SAYS)
    program(tmp_path / "bin", "scontrol", "#!/bin/sh\n[ \"$*\" = 'show hostnames gpu[04-05]' ] && printf 'gpu04\\ngpu05\\n'\n")  # fmt: skip
    program(tmp_path / "slipstream-venv" / "bin", "torchrun", SAYS)
    own = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path), "SAID": f"{tmp_path}/said", "PROXY_URL": "https://p"}  # fmt: skip
    subprocess.run(["bash", "-c", script], check=True, env=own | env, timeout=60)
    words = (tmp_path / "said").read_text().splitlines()
    if "torch.distributed.run" in words:
        words = words[words.index("torch.distributed.run") + 1 :]
    found = dict(line.split("=", 1) for line in (tmp_path / "said.env").read_text().splitlines())
    return get_args_parser().parse_args(words), found


def check(args: Any, settings: dict[str, str]) -> None:
    assert args.module and args.training_script == "slipstream.cli" and args.training_script_args[0] == "trainer"
    build_parser("trainer").parse_args(args.training_script_args)
    assert (args.nnodes, args.nproc_per_node, args.rdzv_backend, args.max_restarts) == ("2", "8", "c10d", 3)
    assert args.rdzv_endpoint.endswith(":29500")
    assert settings.pop(OWN_RENDEZVOUS_ENV) == "1", "restarted processes find each other"
    for name in settings:
        assert name in OWN_ENV or is_setting(name), name
    assert settings["SLIPSTREAM_TRAINER__SHARDING"] == "fsdp2"


def test_slurm(tmp_path: Path) -> None:
    text = SBATCH.read_text()
    args, settings = started(text, tmp_path, SLURM)
    check(args, settings)
    assert args.rdzv_endpoint == "gpu04:29500" and args.rdzv_id == "77"
    assert settings["SLIPSTREAM_DATA_DIR"].startswith("/shared/")
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", text, re.M))
    assert options["nodes"] == "2" and options["ntasks-per-node"] == "1", "an agent a node"


def test_skypilot(tmp_path: Path) -> None:
    task = yaml.safe_load(SKY.read_text())
    assert set(re.findall(r"\$\{?(SKYPILOT_\w+)", task["run"])) <= set(NODES)
    args, settings = started(task["run"], tmp_path, NODES | {k: v or "x" for k, v in task["envs"].items()})
    check(args, settings)
    assert (args.rdzv_endpoint, args.local_addr) == ("10.0.0.4:29500", "10.0.0.5") and args.rdzv_conf == "is_host=0"
    assert task["num_nodes"] == 2
    assert settings["SLIPSTREAM_DATA_DIR"].startswith("/adapters/"), "on the bucket that all of them see"


def test_jobset() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    jobset, policy = yaml.safe_load_all(JOBSET.read_text())
    (one,) = jobset["spec"]["replicatedJobs"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "node"}, "spec": one["template"]["spec"]}
    for o in (job, policy):
        validator.validate(o, "1.31", strict=True)
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["command"] == ["python", "-m", "torch.distributed.run"]
    env = {e["name"]: e.get("value", "") for e in container["env"]}
    args = get_args_parser().parse_args(container["args"])
    check(args, {name: value for name, value in env.items() if name.startswith(("SLIPSTREAM_", "TORCH_"))})
    gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert (int(args.nnodes), int(args.nproc_per_node)) == (job["spec"]["completions"], gpus)
    name, network = jobset["metadata"]["name"], jobset["spec"]["network"]["subdomain"]
    assert args.rdzv_endpoint == f"{name}-{one['name']}-0-0.{network}:29500", "JobSet's name of the first pod"
    assert spec["automountServiceAccountToken"] is False and spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
