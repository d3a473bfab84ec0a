"""A trainer over two nodes, as the recipes start it: one process is killed with -9 in the middle of a step, and nothing else is different.

The nodes are network namespaces of this machine with host names, addresses and loopbacks of their own. What they share is the data folder, as
the recipes ask for.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support import ROOT, process, slipstream, wait_for
from tests.support.control import FakeControl, serve
from tests.support.machines import NETWORK_PREFIX, Machine, machines
from tests.support.node_files import JOBSET, SBATCH, SKY, SLURM, said_by
from tests.support.tiny import conversation, make_config, make_trainer, table

from slipstream.client import Client
from slipstream.config import CONFIG_ENV, Config
from slipstream_trainer.run.worker import Worker

BATCHES = 3
DYING = """
import os, signal
from pathlib import Path
passes = 0
def loss(tokens, t):
    global passes
    passes += len(tokens.logprobs_T) > 5  # fewer: it is tried at the start
    mark = Path(os.environ.get("DYING_MARK", "/"))
    if passes == 2 and os.environ.get("DYING_RANK") == os.environ.get("RANK") and not mark.exists():
        mark.write_text(os.environ["RANK"])
        os.kill(os.getpid(), signal.SIGKILL)
    ratio = (tokens.logprobs_T - tokens.old_logprobs_T).exp()
    return -(tokens.weights_T * ratio * tokens.advantages_T).sum() / len(ratio)
"""
FIGURES = ("loss", "kl", "grad_norm", "reward")

Told = list[tuple[Any, ...]]


def settings(tiny: Path, data: Path) -> Config:
    return make_config(
        tiny, data, min_groups=1, max_steps=BATCHES, max_kl=1e6, loss="dying:loss", sharding="fsdp2", learning_rate=1e-3
    )


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of all processes."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "dying.py").write_text(DYING)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    path = os.pathsep.join([str(ROOT), *sys.path])
    return {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "DYING_MARK": str(tmp_path / "killed")}


def fed(control: FakeControl) -> FakeControl:
    for i in range(BATCHES):
        control.add(f"b{i}", table(conversation(i)))
    return control


def told(control: FakeControl) -> Told:
    """What came of each batch."""
    assert control.done == {f"b{i}": "trained" for i in range(BATCHES)}
    assert sorted(control.adapters) == [f"tiny@{i + 1}" for i in range(BATCHES)]
    assert [batch for batch, _ in control.acks] == [f"b{i}" for i in range(BATCHES)], "each is told of once"
    steps = {e["step"]: e for e in control.of_kind("step")}
    assert sorted(steps) == [1, 2, 3]
    return [(e["batch"], e["parent"], *(e[name] for name in FIGURES)) for _, e in sorted(steps.items())]


def alone(tiny: Path, folder: Path) -> Told:
    """One process, which nobody kills."""
    config = settings(tiny, folder)
    config.trainer.sharding = "ddp"
    with serve(fed(FakeControl())) as control, Client(control.url) as client:
        worker = Worker(config, client, make_trainer(config, warm=False))
        assert worker.run() == 0
        return told(control)


def check(control: FakeControl, one: Told, tmp_path: Path, rank: int) -> None:
    assert (tmp_path / "killed").read_text() == str(rank)
    for ours, theirs in zip(told(control), one, strict=True):
        assert ours[:2] == theirs[:2]
        assert ours[2:] == pytest.approx(theirs[2:], rel=1e-4, abs=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rank", [0, 1])
def test_processes_of_one_machine(rank: int, tiny: Path, tmp_path: Path, world: dict[str, str]) -> None:
    """`slipstream trainer --processes 2`; the first one is who talks to the proxy."""
    one = alone(tiny, tmp_path / "alone")
    with serve(fed(FakeControl())) as control:
        argv = slipstream("trainer", "--processes", "2", "--url", control.url)
        env = world | {CONFIG_ENV: settings(tiny, tmp_path / "d").model_dump_json(), "DYING_RANK": str(rank)}
        with process(argv, tmp_path / "log", env) as p:
            wait_for(lambda: p.poll() is not None, 600, said="the trainer has ended")
        assert p.returncode == 0, (tmp_path / "log").read_text()[-5000:]
    check(control, one, tmp_path, rank)


# the recipes: each gives the words and the environment of a node

Commands = list[tuple[list[str], dict[str, str]]]


def torchrun(url: str, folder: Path, model: Path) -> Commands:
    """What docs/gpus.md tells to type on each machine; with two processes on each."""
    (said,) = re.findall(
        r"^(SLIPSTREAM\S+ TORCH\S+ \\\ntorchrun .*?--url \S+)", (ROOT / "docs" / "gpus.md").read_text(), re.M | re.S
    )
    words = shlex.split(said.replace("\\\n", " "))
    at = words.index("torchrun")
    env = dict(word.split("=", 1) for word in words[:at])
    given = {"FIRST:29500": "node0:29500", "https://PROXY": url, "8": "2"}
    argv = [sys.executable, "-m", "torch.distributed.run", *(given.get(w, w) for w in words[at + 1 :])]
    return [(argv, env)] * 2


def slurm(url: str, folder: Path, model: Path) -> Commands:
    given = SLURM | {
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_GPUS_ON_NODE": "1",
        "PROXY_URL": url,
        "MODEL": str(model),
        "MODEL_NAME": "tiny",
    }
    words, env = said_by(SBATCH.read_text(), folder, given)  # as srun got them, which runs them on each node
    return [([sys.executable, "-m", "torch.distributed.run", *words], env)] * 2


def skypilot(url: str, folder: Path, model: Path) -> Commands:
    script = yaml.safe_load(SKY.read_text())["run"].replace("/adapters", str(folder / "bucket"))
    program = folder / "slipstream-venv" / "bin" / "torchrun"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m torch.distributed.run "$@"\n')
    program.chmod(0o755)
    env = {
        "HOME": str(folder),
        "PROXY_URL": url,
        "MODEL": str(model),
        "MODEL_NAME": "tiny",
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NUM_GPUS_PER_NODE": "1",
    }
    ips = {"SKYPILOT_NODE_IPS": f"{NETWORK_PREFIX}.1\n{NETWORK_PREFIX}.2"}
    return [(["bash", "-c", script], env | ips | {"SKYPILOT_NODE_RANK": str(n)}) for n in range(2)]


def jobset(url: str, folder: Path, model: Path) -> Commands:
    """What the kubelet starts in the JobSet's pods, with one process in each."""
    pod = next(yaml.safe_load_all(JOBSET.read_text()))["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    mounted = folder / "slipstream.toml"  # the ConfigMap's
    mounted.write_text(f'[engine]\nname = "tiny"\n[trainer]\nmodel = "{model}"\n')
    env = {e["name"]: e["value"].replace("/adapters", f"{folder}/volume") for e in container["env"] if "value" in e}
    given = {"--nproc-per-node=8": "--nproc-per-node=1", "/etc/slipstream/slipstream.toml": str(mounted), "http://proxy:8100": url}  # fmt: skip
    words = [given.get(word, word) for word in (*container["command"][1:], *container["args"])]
    return [
        ([sys.executable, *(w.replace("$(POD_IP)", f"{NETWORK_PREFIX}.{n + 1}") for w in words)], env) for n in range(2)
    ]


RECIPES = {
    "torchrun": (torchrun, ["node0", "node1"], 3),
    "slurm": (slurm, ["gpu04", "gpu05"], 1),
    "skypilot": (skypilot, ["first", "second"], 0),
    "jobset": (jobset, ["trainer-nodes-node-0-0.trainer-nodes", "trainer-nodes-node-0-1.trainer-nodes"], 1),
}
"""How it is started, the machines' host names, and the rank that is killed."""


@contextlib.contextmanager
def nodes(
    commands: Commands, places: list[Machine], env: dict[str, str], tmp_path: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(process(place.argv(*argv), tmp_path / f"log{n}", env | own))
            for n, (place, (argv, own)) in enumerate(zip(places, commands, strict=True))
        ]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("recipe", RECIPES)
def test_two_nodes(recipe: str, tiny: Path, tmp_path: Path, world: dict[str, str]) -> None:
    one = alone(tiny, tmp_path / "alone")
    make, hosts, rank = RECIPES[recipe]
    with machines(hosts) as (here, places), serve(fed(FakeControl()), here) as control:
        commands = make(control.url, tmp_path, tiny)
        config = settings(tiny, tmp_path / "d")
        env = world | {CONFIG_ENV: config.model_dump_json(), "DYING_RANK": str(rank)}
        with nodes(commands, places, env, tmp_path) as running:
            wait_for(lambda: all(p.poll() is not None for p in running), 900, 0.5, "both nodes have ended")
        assert [p.returncode for p in running] == [0, 0], "".join(
            (tmp_path / f"log{n}").read_text()[-4000:] for n in range(2)
        )
    check(control, one, tmp_path, rank)
