"""The weights of a version, got back: from its checkpoint, else from its own files, else from the start.

A version can be rolled back to long after its step. Its checkpoint (weights, optimiser) is kept for that
(``returnable``). When the checkpoint is gone nonetheless, training goes on from the adapter's own weight files, or
from the start, with a fresh optimiser.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from slipstream.config import Config
from slipstream.contract import AdapterList, AdapterState, folder_of
from slipstream.errors import ConfigError, StartError
from slipstream_trainer.versions.checkpoint import BadCheckpoint, Checkpoints, CheckpointState
from slipstream_trainer.versions.turns import Seat

if TYPE_CHECKING:
    from slipstream_trainer.step.trainer import CapturedGRPOTrainer

log = logging.getLogger(__name__)
ROUNDING_SHARE = 1e-3
"""Difference of two policies' changes of the base weights, over their size, that is none. Another scale makes more."""
Source = Literal["checkpoint", "adapter", "start"]
IN_USE = (AdapterState.LOADING, AdapterState.CANDIDATE, AdapterState.LIVE)
KEPT_ACCEPTED_VERSIONS = 2
"""Retired accepted versions whose checkpoints are kept: the live one may be taken back, and the one before it too."""


def returnable(known: AdapterList, model: str) -> set[str]:
    """Names of the versions that a rollback may make live: those in use, the last accepted ones, the best one (a slow
    slide is taken back to it), the base model.
    """
    ours = [a for a in known.adapters if a.model == model]
    accepted = (a for a in ours if a.state == AdapterState.RETIRED and a.accepted)
    retired = sorted(accepted, key=lambda a: (a.decided or 0.0, a.version))
    live = known.live.get(model, model)
    in_use = (a.name for a in ours if a.state in IN_USE or a.best)
    return {model, live, *in_use, *(a.name for a in retired[-KEPT_ACCEPTED_VERSIONS:])}


@dataclass(slots=True, frozen=True)
class Restored:
    """What training goes on from. ``state`` and ``path`` are the checkpoint's, where there was one."""

    source: Source
    state: CheckpointState | None = None
    path: Path | None = None
    problem: str | None = None
    """Why it is not the version's checkpoint."""


class Recovery:
    """Puts a version's weights and optimiser into a learner's place."""

    def __init__(
        self,
        config: Config,
        seat: Seat,
        checkpoints: Checkpoints,
        files_of: Callable[[str], Path] | None = None,
    ) -> None:
        """``files_of``: a version's folder, wherever it comes from. None: only ``adapters.dir`` is looked at."""
        self.config, self.seat, self.checkpoints = config, seat, checkpoints
        self.files_of = files_of or (lambda name: config.adapters_dir / folder_of(name))

    def newest(self) -> Restored | None:
        """The newest checkpoint that can be read, with its generators; None: there is none."""
        problem = None
        with self.seat.turn() as trainer:
            for path in reversed(self.checkpoints.all()):
                try:
                    state = self.checkpoints.load(path, trainer.learner)
                except BadCheckpoint as e:
                    log.error("%s; trying the checkpoint before it", e)
                    problem = problem or str(e)
                    continue
                self._serve_check(trainer, path, state)
                log.info("going on from %s (step %d, %s)", path.name, state.step, state.weights)
                return Restored("checkpoint", state, path, problem)
            self._put_start(trainer)
        return Restored("start", problem=problem) if problem else None

    def version(self, name: str) -> Restored:
        """Weights and optimiser of that adapter, or of the base model. ``problem`` names what is gone.

        Raises ``ConfigError`` where the files are there, and the settings have no place for what was learned.
        """
        problem = "its checkpoint is gone"
        with self.seat.turn() as trainer:
            for path in self.checkpoints.of_weights(name):
                try:
                    state = self.checkpoints.load(path, trainer.learner, generators=False)
                    self._serve_check(trainer, path, state)
                    return Restored("checkpoint", state, path)
                except BadCheckpoint as e:
                    problem = str(e)
            self._put_start(trainer)
        if name == self.config.model_name:
            return Restored("start")
        try:
            files = self.files_of(name)
            with self.seat.turn() as trainer:
                trainer.learner.load(files)
        except StartError as e:
            with self.seat.turn() as trainer:
                self._put_start(trainer)  # it may have been put in by half
            return Restored("start", problem=f"{problem}; {e}")
        return Restored("adapter", problem=problem)

    def _serve_check(self, trainer: CapturedGRPOTrainer, path: Path, state: CheckpointState) -> None:
        """The engine serves the version's files: a checkpoint that is another policy gives way to them."""
        folder = self.config.adapters_dir / folder_of(state.weights)
        if state.ahead or not folder.is_dir():
            return
        try:
            apart = trainer.learner.distance(folder)
        except (ConfigError, StartError) as e:
            log.warning("%s is not compared with what the engine serves: %s", path.name, e)
            return
        if apart > ROUNDING_SHARE:
            log.error(
                "%s is not the policy that the engine serves as %s (%.2g of its size apart): going on from its files, "
                "with a fresh optimiser",
                path.name,
                state.weights,
                apart,
            )
            trainer.learner.load(folder)

    def _put_start(self, trainer: CapturedGRPOTrainer) -> None:
        trainer.learner.restore(self.seat.turns.start)
