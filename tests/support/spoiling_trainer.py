"""The trainer as it is, but one step destroys its weights when a file asks for that: tests start it.

    python -m tests.support.spoiling_trainer FOLDER [arguments of `slipstream trainer`]

While ``FOLDER/spoil`` exists, the next step that publishes an adapter has noise in place of what was learned. So the
checkpoint, the adapter and all that is made from them are bad, as after a real accident. Every checkpoint's name and
the fingerprint of its optimiser go to ``FOLDER/checkpoints.jsonl``.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

import torch

from slipstream.cli import main
from slipstream.contract import AdapterList
from slipstream_trainer.versions.checkpoint import CheckpointState
from slipstream_trainer.versions.current_policy import CurrentPolicy

FOLDER = Path(sys.argv[1])
NOISE = 0.5
advance, save = CurrentPolicy.advance, CurrentPolicy._save


def fingerprint(found: object) -> str:
    """Of nested dicts and lists of tensors."""
    digest = hashlib.sha256()

    def add(x: object) -> None:
        if isinstance(x, torch.Tensor):
            digest.update(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(x, dict):
            for k in sorted(x, key=str):
                digest.update(str(k).encode())
                add(x[k])
        elif isinstance(x, list | tuple):
            for one in x:
                add(one)
        else:
            digest.update(repr(x).encode())

    add(found)
    return digest.hexdigest()[:16]


def spoiled_advance(self: CurrentPolicy, state: CheckpointState, known: AdapterList) -> None:
    if state.adapter and (FOLDER / "spoil").exists():
        with torch.no_grad():
            for name, weight in self.seat.trainer.model.named_parameters():
                if weight.requires_grad and "lora_B" in name:
                    weight.normal_(0.0, NOISE)
        (FOLDER / "spoil").rename(FOLDER / f"spoiled-{state.adapter}")
    advance(self, state, known)


def told_save(self: CurrentPolicy, state: CheckpointState) -> Path:
    line = {
        "weights": state.weights,
        "step": state.step,
        "optimizer": fingerprint(self.seat.trainer.optimizer.state_dict()["state"]),
        "moments": len(self.seat.trainer.optimizer.state_dict()["state"]),
        "at": time.time(),
    }
    with (FOLDER / "checkpoints.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    return save(self, state)


if __name__ == "__main__":
    CurrentPolicy.advance, CurrentPolicy._save = spoiled_advance, told_save  # type: ignore[method-assign]
    sys.exit(main(["trainer", *sys.argv[2:]]))
