"""Before the first batch: do the engines take adapters of this shape, and answer otherwise with them?

Else every batch would be used up for adapters that nobody is served by.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file

from slipstream.config import Config
from slipstream.errors import ApiError, ConfigError
from slipstream.shared.adapter_config import WEIGHT_NAME_PATTERN, WEIGHTS_FILE_NAME
from slipstream_trainer.versions.adapter_folder import temporary_of, write_adapter
from slipstream_trainer.versions.learner import Stop

if TYPE_CHECKING:
    from slipstream_trainer.model.learner import Learner
    from slipstream_trainer.versions.publisher import Publisher
    from slipstream_trainer.versions.turns import Seat

log = logging.getLogger(__name__)
UNTRIED_TEXT = "no adapter was tried in the engine: %s"
TRIAL_WEIGHT_STD = 0.02
"""Standard deviation of the trial's B: as large as the weights of a usual model."""


TRIAL_INTERVAL_S = 0.25
"""Seconds between two questions while no engine is up."""
SETTLE_INTERVAL_S = 0.1
SHARED_PAUSE_S, UPLOADED_PAUSE_S = 2.0, 60.0
"""Between two asks whether an engine is there to try an adapter; if each is an upload."""


class ShapeTrial:
    """Asks about adapters of this shape until engines have tried one, for all that share the trainer."""

    def __init__(self, config: Config, seat: Seat, publisher: Publisher) -> None:
        self.config, self.seat, self.publisher = config, seat, publisher
        self._asked = float("-inf")
        """When they were asked last (monotonic)."""
        self._answer: Future[bool] | None = None
        self._due = threading.Event()
        """A step waits for the answer."""

    def begin(self) -> None:
        """Ask, if it is time to."""
        pause = SHARED_PAUSE_S if self.publisher.shipping.shared is not False else UPLOADED_PAUSE_S
        if not self.seat.turns.tried and self._answer is None and time.monotonic() - self._asked > pause:
            self._due = threading.Event()
            self._answer = begin_trial(self.config, self.seat, self.publisher, self._due)

    def settle(self, *, wait: bool) -> None:
        """What the engines said, if they said it. Raises ``ConfigError`` where they refuse it, and ``Stop``."""
        answer = self._answer
        if wait:
            self._due.set()
        while answer is not None and wait and not answer.done():
            if self.publisher.stop.wait(SETTLE_INTERVAL_S):
                raise Stop
        if answer is not None and answer.done():
            self._answer, self._asked = None, time.monotonic()
            self.seat.turns.tried = answer.result() or self.seat.turns.tried


def begin_trial(config: Config, seat: Seat, publisher: Publisher, due: threading.Event | None = None) -> Future[bool]:
    """Write an adapter with random weights, and ask the proxy about it in a thread: an engine's first adapter takes it
    seconds, and steps need not wait for the answer. → Whether an engine was there to try it. Until ``due`` is set, the
    answer waits for one.

    It raises ``ConfigError`` if adapters of this shape would be refused, or would change nothing.
    """
    found: Future[bool] = Future()
    folder = temporary_of(config.adapters_dir / "trial", publisher.learner.record.name)
    names: set[str] = set()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with seat.turn() as trainer:
            learner = trainer.learner
            write_adapter(lambda made: names.update(_write(learner, made)), folder, config.engine.max_lora_rank)
    except OSError as e:
        shutil.rmtree(folder, ignore_errors=True)
        log.warning(UNTRIED_TEXT, e)
        found.set_result(True)
        return found

    def ask() -> None:
        try:
            found.set_result(_ask(folder, publisher, sorted(names), due))
        except BaseException as e:  # whoever looks at the answer gets it
            found.set_exception(e)

    threading.Thread(target=ask, daemon=True, name="trial").start()
    return found


def _ask(folder: Path, publisher: Publisher, names: list[str], due: threading.Event | None) -> bool:
    try:
        found = publisher.shipping.try_out(folder)
        while not found.tried and due is not None and publisher.shipping.shared and not publisher.stop.is_set():
            if due.wait(TRIAL_INTERVAL_S):
                break
            found = publisher.shipping.try_out(folder)
    except (ApiError, OSError) as e:
        log.warning(UNTRIED_TEXT, e)
        return True
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if found.reason is not None:
        raise ConfigError(
            f"no adapter of {', '.join(names)} can be served: {found.reason}; {_fix(names, found.reason)}"
        )
    return found.tried


def _fix(names: list[str], reason: str) -> str:
    """VLLM's refusal quotes the layers that it does not take."""
    quoted = reason.rpartition("received")[2]
    rest = [n for n in names if not re.search(rf"\b{re.escape(n)}\b", quoted)]
    if rest and len(rest) < len(names):
        return f"set trainer.lora_targets = {json.dumps(rest)}"
    return "set trainer.lora_targets to linear layers that the engine takes"


def _write(learner: Learner, folder: Path) -> set[str]:
    """The policy's adapter as it stands, with random B. → What the adapted layers are called."""
    learner.adapter(folder)
    place, random = folder / WEIGHTS_FILE_NAME, torch.Generator().manual_seed(0)
    spread = {
        n: torch.randn(w.shape, generator=random).mul_(TRIAL_WEIGHT_STD).to(w) if ".lora_B." in n else w.clone()
        for n, w in load_file(place).items()
    }
    save_file(spread, place, {"format": "pt"})
    found = (WEIGHT_NAME_PATTERN.match(n) for n in spread)
    return {part["module"].rpartition(".")[2] for part in found if part}
