"""One trainer for several learners: each in its turn has the model, with its own weights, optimiser and settings.

A learner is a tenant, or the only one. Between its turns its weights and optimiser wait in the host's memory, and
beyond a bound in a file. The next turn is that of the learner who has trained on the fewest tokens. One that comes
after a pause counts as if it had had as many as the one whose turn it is: a pause is no claim. So it waits for one step
at most, however many batches the others have. Those that always wait train on equally many tokens.

A lone learner always has the model, and nothing is copied.
"""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.config import Config
from slipstream_trainer.model.weights import Snapshot
from slipstream_trainer.versions.checkpoint import random_state, set_random_state
from slipstream_trainer.versions.tensor_tree import load_tree, save_tree

if TYPE_CHECKING:
    import torch

    from slipstream_trainer.step.trainer import CapturedGRPOTrainer

log = logging.getLogger(__name__)
WAITING_FOLDER_NAME = ".tmp-trainer-waiting"
"""Beside a learner's checkpoints, which sweep it away when the next trainer starts."""


class TrainerTurns:
    """Whose turn it is. ``trainer``: ready for its first batch."""

    def __init__(self, trainer: CapturedGRPOTrainer, host_bytes: float = math.inf) -> None:
        """``host_bytes``: of what waits in memory."""
        self.trainer, self.host_bytes = trainer, host_bytes
        self.seats: list[Seat] = []
        self.start = trainer.learner.save(keep=True)
        self.random = random_state()
        self.first = trainer.learner.first
        """What β and users' words are measured from, of learners that start as the trainer did."""
        self.tried = False
        """The engines were asked about an adapter of this shape."""
        self.has: Seat | None = None
        """The learner whose weights the model has."""
        self.told: Seat | None = None
        """The learner whose settings the other processes have."""
        self.weights_told: tuple[int, ...] | None = None
        """``changes_of`` the model when the other processes had its weights and optimiser. None: never."""
        self._holder: Seat | None = None
        self._depth = 0
        self._waiting: list[Seat] = []
        self._served = 0.0
        """Of the learner whose turn it is, when that began."""
        self._changed = threading.Condition()

    def seat(self, config: Config) -> Seat:
        """A place for one more learner. The first one has the model."""
        made = Seat(self, config)
        with self._changed:
            if not self.seats:
                self.has = self.told = made
            self.seats.append(made)
        return made

    def leave(self, seat: Seat) -> None:
        """It is a learner no more."""
        with self.held(seat, 0):
            self.seats.remove(seat)
            seat.forget()
            if self.has is seat:
                self.has = None

    @contextlib.contextmanager
    def held(self, seat: Seat, tokens: int) -> Iterator[None]:
        """The block has the trainer. Again in the same thread: nothing more."""
        with self._changed:
            if self._holder is not seat:
                seat.served, seat.wants = max(seat.served, self._served), tokens
                self._waiting.append(seat)
                self._changed.wait_for(lambda: self._holder is None and self._next() is seat)
                self._waiting.remove(seat)
                self._holder, self._served = seat, seat.served
            self._depth += 1
        try:
            yield
        finally:
            with self._changed:
                self._depth -= 1
                if not self._depth:
                    self._holder = None
                    self._changed.notify_all()

    def _next(self) -> Seat:
        return min(self._waiting, key=lambda seat: (seat.served, seat.wants))

    def swap(self, seat: Seat) -> None:
        """In its turn: its weights into the model, those of the one before out of it."""
        if self.has is seat:
            return
        if self.has is not None:
            self.has.park()
        self.has = None
        seat.unpark()
        self.has = seat
        self.seats.sort(key=lambda other: other is seat)  # the one that had its turn last comes last
        size = sum(other.kept.size for other in self.seats if other.kept is not None)
        for other in self.seats:
            if size > self.host_bytes:
                size -= other.write()


class Seat:
    """One learner's place. One thread alone takes its turns."""

    def __init__(self, turns: TrainerTurns, config: Config) -> None:
        self.turns, self.config = turns, config
        self.served = 0.0
        """Tokens that it has trained on, and those of others while it had nothing to train on."""
        self.wants = 0
        """Tokens of the batch that it waits with."""
        self.kept: Snapshot | None = None
        """While it waits, if it is in memory."""
        self._first: dict[str, torch.Tensor] | None = None
        """What its KL term holds to, while it waits. None: what the trainer started from."""
        self._random = turns.random

    @property
    def trainer(self) -> CapturedGRPOTrainer:
        """For what is the same to all learners."""
        return self.turns.trainer

    @contextlib.contextmanager
    def turn(self, tokens: int = 0) -> Iterator[CapturedGRPOTrainer]:
        """The block has the trainer, with this learner's weights. ``tokens``: of the batch that it is for."""
        with self.turns.held(self, tokens):
            self.turns.swap(self)
            self.kept = None  # the block may change them
            yield self.trainer

    def trained(self, tokens: int) -> None:
        """In its turn: on so many tokens. What came of it is copied at once, while others wait for theirs."""
        self.served += tokens
        if len(self.turns.seats) > 1:
            self._take()

    def snapshot(self) -> tuple[Snapshot, dict[str, object]]:
        """Weights, optimiser and random number generators as they are now, on the host. Nobody changes them."""
        if self.kept is None and not self._file.exists():
            with self.turns.held(self, 0):
                if self.turns.has is self:
                    found = self._take()
                    if len(self.turns.seats) == 1:
                        self.kept = None  # the model has it
                    return found, self._random
        return self.kept or self._read(), self._random

    def _take(self) -> Snapshot:
        trainer = self.trainer
        self.kept, self._random = trainer.learner.save(keep=True), random_state()
        return self.kept

    def park(self) -> None:
        """Out of the model."""
        if self.kept is None:
            self._take()
        first = self.trainer.learner.first
        self._first = None if first is self.turns.first else {n: w.to("cpu") for n, w in first.items()}

    def unpark(self) -> None:
        """Into the model, with its settings."""
        trainer = self.trainer
        trainer.config = trainer.learner.config = self.config  # tenants have the same loss and the same LoRA
        first = self._first
        there = self.turns.first if first is None else {n: w.to(trainer.device) for n, w in first.items()}
        trainer.learner.first = there
        trainer.learner.restore(self.kept or self._read())
        set_random_state(self._random)
        self.forget()

    @property
    def _file(self) -> Path:
        return self.config.checkpoints_dir / WAITING_FOLDER_NAME / "state.safetensors"

    def write(self) -> int:
        """From memory to disk. → Bytes that this freed; 0 where the disk takes none."""
        if self.kept is None:
            return 0
        part = self._file.with_name("part")
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            save_tree({"weights": self.kept.weights, "optimizer": self.kept.optimizer}, part)
            part.replace(self._file)
        except OSError as e:
            log.warning("the weights of a learner whose turn it is not stay in memory: %s", e)
            return 0
        size, self.kept = self.kept.size, None
        return size

    def _read(self) -> Snapshot:
        """From disk; of one that had no turn yet, the start."""
        if not self._file.exists():
            return self.turns.start
        raw = load_tree(self._file)
        return Snapshot(raw["weights"], raw["optimizer"])

    def forget(self) -> None:
        """What is in memory and on disk."""
        self.kept = None
        shutil.rmtree(self._file.parent, ignore_errors=True)
