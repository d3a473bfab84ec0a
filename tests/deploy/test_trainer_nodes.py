"""A trainer over several machines: what Slurm's, SkyPilot's and JobSet's files start, read by torchrun's and the trainer's own parsers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.node_files import JOBSET, NODES, SBATCH, SKY, SLURM, said_by
from tests.support.rendering import OWN_ENV, is_setting
from torch.distributed.run import get_args_parser

from slipstream.cli import build_parser
from slipstream.cli.start.trainer import OWN_RENDEZVOUS_ENV


def started(script: str, tmp_path: Path, env: dict[str, str]) -> tuple[Any, dict[str, str]]:
    words, settings = said_by(script, tmp_path, env)
    return get_args_parser().parse_args(words), settings


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
