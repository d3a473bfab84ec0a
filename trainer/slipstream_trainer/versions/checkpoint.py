"""All that a killed trainer needs to go on as if nothing had happened, in one folder that appears whole.

    checkpoints/step-00000012/
        adapter/            PEFT's files: what is published, copied by the publisher
        state.safetensors   trainable weights and their scales, optimiser, random number generators
        compact             not in the newest: its adapter is gone, and the optimiser's moments are in bf16
        state.json          step, pace, kinds of traffic, the batch and what is still to be told about it

The rename of that folder is the moment at which a batch counts as trained.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import random
import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError

from slipstream import __version__
from slipstream.contract import folder_of
from slipstream.errors import SlipstreamError, StartError
from slipstream.shared.adapter_config import AdapterConfig, BadAdapter
from slipstream.shared.files import check_format, sync
from slipstream_trainer.algorithm.learning_rate import StepPace
from slipstream_trainer.algorithm.traffic import Traffic
from slipstream_trainer.model.weights import Snapshot
from slipstream_trainer.versions.adapter_folder import rename_whole, sweep
from slipstream_trainer.versions.tensor_tree import load_tree, save_tree

if TYPE_CHECKING:
    from slipstream_trainer.model.learner import Learner

log = logging.getLogger(__name__)
STATE_FILE = "state.safetensors"
ARRAY_RECONSTRUCTOR: Any = np.zeros(0).__reduce__()[0]
"""What makes an array of its bytes, where an older checkpoint names it."""
DONE_FILE = "told"
"""A file that marks a checkpoint as published, reported and acknowledged."""
LOCK_SECONDS = 30.0
"""How long a start waits for the trainer before it to end."""
UNREADABLE_ERRORS = (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, SafetensorError)
"""What reading a damaged checkpoint raises."""


class BadCheckpoint(SlipstreamError):
    """The checkpoint is damaged, or belongs to another model or LoRA shape."""


@contextlib.contextmanager
def only_one(folder: Path, patience: float = LOCK_SECONDS) -> Iterator[None]:
    """Two trainers on the same checkpoints would undo each other. Raises ``StartError`` when the other one stays,
    and for a data folder of a newer version.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    check_format(folder.parent, __version__)
    end = time.monotonic() + patience
    with (folder / "lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as e:
                if time.monotonic() > end:
                    raise StartError(f"another trainer works in {folder}") from e
            time.sleep(0.2)
        yield


@dataclass(slots=True)
class CheckpointState:
    step: int = 0
    """Optimiser steps taken and kept."""
    pace: StepPace = field(default_factory=StepPace)
    base: str = ""
    """Name of the adapter (or base model) whose weights these were before the step."""
    weights: str = ""
    """What these weights are called: the adapter they are published as, or the base model. ``NAME+2``: two steps after
    it, which are not published.
    """
    ahead: int = 0
    """Steps that are not published."""
    batches: list[str] = field(default_factory=list)
    """Batches that these weights were trained on since the version before was published."""
    adapter: str | None = None
    """What is still to be published from here; None: nothing (no step, or one that was undone)."""
    batch: str | None = None
    lease: str = ""
    outcome: str = "trained"
    """The outcome that the ack sends."""
    reason: str | None = None
    event: dict[str, Any] = field(default_factory=dict)
    """``kind`` and ``data`` of the event that tells of it."""
    advantages: dict[str, float] = field(default_factory=dict)
    words: dict[str, dict[str, float]] = field(default_factory=dict)
    """What users' words changed, as the ack sends it."""
    traffic: Traffic = field(default_factory=Traffic)
    meta: dict[str, Any] = field(default_factory=dict)
    """What the version that is published from here says of itself."""

    def rename(self, adapter: str) -> None:
        """What is to be published gets another name, as its own is taken."""
        self.adapter = self.weights = adapter
        if data := self.event.get("data"):
            data["adapter"] = adapter

    @property
    def published(self) -> str:
        """The newest published version in these weights' lineage, or the base model."""
        return self.weights.rsplit("+", 1)[0] if self.ahead else self.weights

    @property
    def unpublished(self) -> list[str]:
        """Batches that the next version is the first to come of."""
        return self.batches if self.ahead else []


def _older(path: Path) -> dict[str, Any]:
    """A checkpoint that a version up to 0.1 wrote, as a pickle: tensors and plain values are read, and nothing is run.

    Raises ``BadCheckpoint`` for one that holds more.
    """
    old = path / "state.pt"
    kinds: list[Any] = [
        np.ndarray,
        np.dtype,
        type(np.dtype(np.uint32)),
        (ARRAY_RECONSTRUCTOR, "numpy.core.multiarray._reconstruct"),
    ]
    try:
        with torch.serialization.safe_globals([ARRAY_RECONSTRUCTOR, *kinds]):
            found: dict[str, Any] = torch.load(old, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as e:  # what an unpickler raises is anything
        text = f"{path.name}/state.pt holds more than tensors and numbers, and is not unpickled: {type(e).__name__}"
        raise BadCheckpoint(text) from e
    return found


def random_state() -> dict[str, object]:
    found: dict[str, object] = {
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


def _replace(place: Path, text: str) -> None:
    temporary = place.with_name(f"{place.name}.part")
    temporary.write_text(text)
    sync(temporary)  # else a machine that stops now could leave an empty file in its place
    temporary.replace(place)


class Checkpoints:
    """The folder of checkpoints. The ``keep`` newest stay, and those of every version that can be rolled back to."""

    def __init__(self, folder: Path, keep: int, adapters: Path | None = None) -> None:
        """``adapters``: where the published versions are."""
        self.folder, self.keep, self.adapters = folder, keep, adapters
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        for path in filter(self.told, self._folders()):
            self._without_names(path)

    def all(self) -> list[Path]:
        """Checkpoints whose ``state.json`` can be read, oldest first."""
        return [p for p in self._folders() if self._readable(p)]

    def _folders(self) -> list[Path]:
        return sorted(p for p in self.folder.glob("step-*") if p.is_dir())

    def _readable(self, path: Path) -> bool:
        try:
            self.read(path)
        except BadCheckpoint:
            return False
        return True

    def latest(self) -> Path | None:
        found = self.all()
        return found[-1] if found else None

    def read(self, path: Path) -> CheckpointState:
        """Raises ``BadCheckpoint``."""
        try:
            raw = json.loads((path / "state.json").read_text())
            made = {"pace": StepPace(**raw["pace"]), "traffic": Traffic(**raw.get("traffic", {}))}
            return CheckpointState(**(raw | made))
        except UNREADABLE_ERRORS as e:
            raise BadCheckpoint(f"{path.name}/state.json cannot be read: {e!r}") from e

    def of_weights(self, name: str) -> list[Path]:
        """Checkpoints with the weights of that adapter (or of the base model), newest first."""
        return [p for p in reversed(self.all()) if self.read(p).weights == name]

    def save(
        self,
        learner: Learner,
        snapshot: Snapshot,
        state: CheckpointState,
        generators: dict[str, object] | None = None,
    ) -> Path:
        """Of ``learner``, only what never changes is read. ``generators``: as they were at the snapshot; None: now."""
        number = 1 + max((int(p.name.removeprefix("step-")) for p in self._folders()), default=-1)
        final = self.folder / f"step-{number:08d}"
        temporary = self.folder / f".tmp-trainer-{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        if state.adapter:
            learner.adapter(temporary / "adapter", snapshot)
        kept = {
            "weights": snapshot.weights,
            "scales": learner.scales(),
            "optimizer": snapshot.optimizer,
            "random": generators or random_state(),
        }
        save_tree(kept, temporary / STATE_FILE)
        (temporary / "state.json").write_text(json.dumps(asdict(state)))
        rename_whole(temporary, final)
        return final

    def load(self, path: Path, learner: Learner, *, generators: bool = True) -> CheckpointState:
        """Put weights and optimiser back, and the generators (not after a rollback: time goes on). If the LoRA has
        another rank or scale now, the policy stays what it was, and the optimiser starts afresh.

        Raises ``BadCheckpoint``, and ``ConfigError`` for what the settings have no place for; both before anything is
        changed.
        """
        state = self.read(path)
        try:
            raw = load_tree(path / STATE_FILE) if (path / STATE_FILE).is_file() else _older(path)
            snapshot, random_states = Snapshot(raw["weights"], raw["optimizer"]), raw["random"]
        except UNREADABLE_ERRORS as e:
            raise BadCheckpoint(f"{path.name}/{STATE_FILE} cannot be read: {e!r}") from e
        whose = f"the checkpoint {path.name}"
        try:
            refitted = learner.adopt(snapshot, self._scales(path, state, raw, learner.scales()), whose)
        except StartError as e:
            raise BadCheckpoint(str(e)) from e
        if refitted:
            log.warning(
                "%s was made with another trainer.lora_alpha, lora_rank, rslora or lora_targets: its B was rescaled, "
                "so that the policy stays the same, and the optimiser starts afresh",
                whose,
            )
        if generators:
            set_random_state(random_states)
        return state

    def _scales(
        self, path: Path, state: CheckpointState, raw: dict[str, Any], now: dict[str, float]
    ) -> dict[str, float]:
        """Of these weights, by module. Older checkpoints do not say: the version's files do. ``now``: the policy's."""
        if "scales" in raw:
            stored: dict[str, float] = raw["scales"]
            return now | stored
        for folder in (path / "adapter", *((self.adapters / folder_of(state.published),) if self.adapters else ())):
            with contextlib.suppress(BadAdapter):
                found = AdapterConfig.read(folder)
                return {name: found.scale_of(name) for name in now}
        return now

    def rename(self, path: Path, adapter: str) -> None:
        """What is to be published gets another name, as its own is taken."""
        raw = json.loads((path / "state.json").read_text())
        raw["adapter"] = raw["weights"] = adapter
        if data := raw["event"].get("data"):
            data["adapter"] = adapter
        _replace(path / "state.json", json.dumps(raw))

    def told(self, path: Path) -> bool:
        return (path / DONE_FILE).exists()

    def set_told(self, path: Path) -> None:
        self._without_names(path)
        (path / DONE_FILE).touch()

    def _without_names(self, path: Path) -> None:
        """The ids of episodes, which clients wrote, stay here only until the proxy has the ack with them."""
        place = path / "state.json"
        with contextlib.suppress(*UNREADABLE_ERRORS):
            raw = json.loads(place.read_text())
            if raw.get("advantages") or raw.get("words"):
                _replace(place, json.dumps(raw | {"advantages": {}, "words": {}}))

    def prune(self, wanted: Collection[str], *, keep: int | None = None) -> None:
        """Remove old checkpoints; keep the newest of each name in ``wanted``, and what is not published yet. Those
        that stay lose their copy of the adapter. ``keep``: how many of the newest stay in any case; None: as ever.
        """
        readable = self.all()
        need = {found[0] for name in wanted if (found := self.of_weights(name))}
        newest = set(readable[-(keep or self.keep) :])
        for path in self._folders():
            if path in readable and (path in newest or path in need or not self.told(path)):
                if path != readable[-1] and self.told(path):
                    shutil.rmtree(path / "adapter", ignore_errors=True)  # the published one is the same
                continue
            gone = self.folder / f".tmp-trainer-gone-{path.name}"
            path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
