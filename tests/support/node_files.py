"""What Slurm's and SkyPilot's files start on a node, and where these files are."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.rendering import DEPLOY

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


def said_by(script: str, tmp_path: Path, env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """torchrun's words and the settings that a script gives; ``srun`` and ``torchrun`` only say what they get."""
    program(tmp_path / "bin", "srun", SAYS)
    program(tmp_path / "bin", "scontrol", "#!/bin/sh\n[ \"$*\" = 'show hostnames gpu[04-05]' ] && printf 'gpu04\\ngpu05\\n'\n")  # fmt: skip
    program(tmp_path / "slipstream-venv" / "bin", "torchrun", SAYS)
    own = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path), "SAID": f"{tmp_path}/said", "PROXY_URL": "https://p"}  # fmt: skip
    subprocess.run(["bash", "-c", script], check=True, env=own | env, timeout=60)
    words = (tmp_path / "said").read_text().splitlines()
    if "torch.distributed.run" in words:
        words = words[words.index("torch.distributed.run") + 1 :]
    found = dict(line.split("=", 1) for line in (tmp_path / "said.env").read_text().splitlines())
    return words, found
