"""All that a killed trainer needs to go on as if nothing had happened, in one folder that appears whole.

    checkpoints/step-00000012/
        adapter/            PEFT's files: what is published, copied by the publisher
        state.pt            trainable weights, optimiser, random number generators
        state.json          step, pace, the batch and what is still to be told about it

The rename of that folder is the moment at which a batch counts as trained.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slipstream_trainer.guards import Pace, Snapshot
from slipstream_trainer.publish import rename_whole, sweep

DONE = "told"
"""A file that says: published, told and acknowledged."""


@dataclass(slots=True)
class State:
    step: int = 0
    """Optimiser steps taken and kept."""
    pace: Pace = field(default_factory=Pace)
    base: str = ""
    """Name of the adapter (or base model) whose weights these were before the step."""
    weights: str = ""
    """What these weights are called: the adapter they are published as, or the base model."""
    adapter: str | None = None
    """What is still to be published from here; None: nothing (no step, or one that was undone)."""
    batch: str | None = None
    lease: str = ""
    outcome: str = "trained"
    """Of the ack."""
    reason: str | None = None
    event: dict[str, Any] = field(default_factory=dict)
    """``kind`` and ``data`` of the event that tells of it."""
    advantages: dict[str, float] = field(default_factory=dict)


def random_state() -> dict[str, Any]:
    found: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def set_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


class Checkpoints:
    """The folder of checkpoints. ``keep`` newest stay, and those whose adapter is in use."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)

    def all(self) -> list[Path]:
        """Oldest first."""
        return sorted(p for p in self.folder.glob("step-*") if (p / "state.json").is_file())

    def latest(self) -> Path | None:
        found = self.all()
        return found[-1] if found else None

    def read(self, path: Path) -> State:
        raw = json.loads((path / "state.json").read_text())
        return State(**(raw | {"pace": Pace(**raw["pace"])}))

    def of_weights(self, name: str) -> Path | None:
        """The newest checkpoint with the weights of that adapter (or of the base model)."""
        return next((p for p in reversed(self.all()) if self.read(p).weights == name), None)

    def save(self, model: Any, snapshot: Snapshot, state: State) -> Path:
        number = 1 + max((int(p.name.removeprefix("step-")) for p in self.all()), default=-1)
        final = self.folder / f"step-{number:08d}"
        temporary = self.folder / f".tmp-trainer-{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        if state.adapter:
            model.save_pretrained(str(temporary / "adapter"), safe_serialization=True, save_embedding_layers=False)
            (temporary / "adapter" / "README.md").unlink(missing_ok=True)
        torch.save(
            {"weights": snapshot.weights, "optimizer": snapshot.optimizer, "random": random_state()},
            temporary / "state.pt",
        )
        (temporary / "state.json").write_text(json.dumps(asdict(state)))
        rename_whole(temporary, final)
        return final

    def load(
        self, path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, generators: bool = True
    ) -> State:
        """Put weights and optimiser back, and the generators (not after a rollback: time goes on)."""
        # written by ourselves; random states are plain Python objects that the weights-only reader does not take
        raw = torch.load(path / "state.pt", map_location="cpu", weights_only=False)
        Snapshot(raw["weights"], raw["optimizer"]).restore(model, optimizer)
        if generators:
            set_random_state(raw["random"])
        return self.read(path)

    def told(self, path: Path) -> bool:
        return (path / DONE).exists()

    def set_told(self, path: Path) -> None:
        (path / DONE).touch()

    def prune(self, live: str) -> None:
        """Keep the newest ones, and what is live, to come back to."""
        everything = self.all()
        need = self.of_weights(live)
        for path in everything[: -self.keep]:
            if path != need and self.told(path):
                gone = self.folder / f".tmp-trainer-gone-{path.name}"
                path.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)
