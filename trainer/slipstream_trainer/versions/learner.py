"""One trainer learns for a model. A second one waits until the first is gone, and goes on from its newest version.

The proxies' store keeps who that is. A folder of checkpoints proves by its tokens that it is the same trainer that is
started again. A trainer that was paused and comes back finds its token refused: its steps since then count for nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from slipstream.client import Client
from slipstream.config import Config
from slipstream.contract import LearnerAnswer, LearnerIn
from slipstream.errors import ApiError, ConfigError, SlipstreamError
from slipstream.shared.files import sync

if TYPE_CHECKING:
    from slipstream_trainer.versions.events import Metrics

log = logging.getLogger(__name__)
LEARNER_TTL_S, RENEW_INTERVAL_S = 30.0, 5.0
"""Seconds without a word after which another trainer takes over; seconds between words, of one that waits too."""
KEPT_TOKENS = 16
RECORD_FILE = "learner.json"
LEARNER_FIELDS = ("body.learner", "body.adapter.learner")
"""What an answer 409 names where another trainer learns."""


class Stop(BaseException):
    """The process was asked to end; not an Exception, so that nobody on the way takes it for an error."""


class Fenced(SlipstreamError):
    """Another trainer learns for the model since."""


def is_fence(error: ApiError) -> bool:
    return error.status == 409 and error.field in LEARNER_FIELDS


@dataclass(slots=True)
class LearnerRecord:
    """What a folder of checkpoints knows of itself."""

    name: str = field(default_factory=lambda: uuid4().hex[:8])
    tokens: list[str] = field(default_factory=list)
    """Of its starts, the newest last."""
    epoch: int = 0
    """Of which its checkpoints are."""

    @classmethod
    def read(cls, folder: Path) -> LearnerRecord:
        """Of a folder that has none, a new one, which is kept."""
        try:
            return cls(**json.loads((folder / RECORD_FILE).read_text()))
        except (OSError, ValueError, TypeError):
            record = cls()
            record.write(folder)
            return record

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{RECORD_FILE}.part"
        part.write_text(json.dumps(asdict(self)))
        sync(part)
        part.replace(folder / RECORD_FILE)
        sync(folder)


def worker_name(config: Config) -> str:
    """Under which the trainer leases: another one for each folder of checkpoints."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", f"trainer-{config.model_name}")[:110]
    known = (config.checkpoints_dir / RECORD_FILE).is_file()
    return f"{name}-{LearnerRecord.read(config.checkpoints_dir).name}" if known else name


class LearnerLease:
    """``token`` is in all that the trainer posts."""

    def __init__(self, config: Config, client: Client, metrics: Metrics, stop: threading.Event) -> None:
        self.config, self.client, self.metrics, self.stop = config, client, metrics, stop
        self.folder = config.checkpoints_dir
        self.record = LearnerRecord.read(self.folder)
        self.name = worker_name(config)
        self.token = uuid4().hex
        self._known = self.record.tokens[-KEPT_TOKENS:]
        """Earlier starts' tokens, until the first answer."""
        self._lost: LearnerAnswer | None = None
        self._epoch = 0
        self._ended = threading.Event()
        self._renewing: threading.Thread | None = None

    def hold(self, patiently: Callable[[Callable[[], LearnerAnswer]], LearnerAnswer], idle: Callable[[], None]) -> bool:
        """Wait until this is the one trainer. ``idle`` is called while it waits. → Whether another was it since the
        checkpoints here. Raises ``Stop``, as ``patiently`` does.
        """
        self._remember_token()
        said = ""
        while not (answer := self._first(patiently)).held:
            who = f"{answer.worker} at {answer.place}"
            if who != said:
                said = who
                log.warning(
                    "another trainer learns for %s: %s. This one waits until that one has ended, or was silent for "
                    "%.0f s",
                    answer.model,
                    who,
                    LEARNER_TTL_S,
                )
            self.metrics.waiting.set(1)
            idle()
            if self.stop.wait(RENEW_INTERVAL_S):
                with contextlib.suppress(ApiError):
                    self._ask(0.0)
                raise Stop
        self.metrics.waiting.set(0)
        self._known, self._lost, self._epoch = [], None, answer.epoch
        if self._renewing is None:
            self._renewing = threading.Thread(target=self._renew, daemon=True, name="learner")
            self._renewing.start()
        return answer.epoch > self.record.epoch

    def _first(self, patiently: Callable[[Callable[[], LearnerAnswer]], LearnerAnswer]) -> LearnerAnswer:
        try:
            return patiently(self._ask)
        except ApiError as e:
            if e.field == "body.model":
                raise ConfigError(
                    f"engine.name is {self.config.model_name} here, and the proxy says: {e}; {e.fix}"
                ) from e
            raise

    def _remember_token(self) -> None:
        """Before the proxy knows it: whoever is killed in between is still known by the token before."""
        if self.token not in self.record.tokens:
            self.record.tokens = [*self.record.tokens, self.token][-KEPT_TOKENS:]
            self.record.write(self.folder)

    def settle(self) -> None:
        """The checkpoints here are of what the proxy says from now on."""
        if self._epoch > self.record.epoch:
            self.record.epoch = self._epoch
            self.record.write(self.folder)

    @property
    def held(self) -> bool:
        return self._renewing is not None and self._lost is None

    def lose(self) -> None:
        """An answer said so."""
        self._lost = self._lost or LearnerAnswer(
            model=self.config.model_name, worker="another", place="", since=0.0, until=0.0, held=False
        )

    def check(self) -> None:
        """Raises ``Fenced``."""
        if self._lost is not None:
            raise Fenced(f"another trainer learns for {self._lost.model}: {self._lost.worker} at {self._lost.place}")

    def end(self) -> None:
        """Another one need not wait for this one to be silent."""
        self._ended.set()
        if self.held:
            self._ask(0.0)

    def _ask(self, seconds: float = LEARNER_TTL_S) -> LearnerAnswer:
        place = f"{socket.gethostname()}:{self.folder.parent.resolve()}"[:300]
        return self.client.be_learner(
            LearnerIn(
                worker=self.name,
                model=self.config.model_name,
                place=place,
                token=self.token,
                known=self._known,
                seconds=seconds,
            )
        )

    def _renew(self) -> None:
        said = False
        while not self._ended.wait(RENEW_INTERVAL_S):
            if self._lost is not None:
                continue
            try:
                answer, said = self._ask(), False
            except ApiError as e:
                if not said:
                    log.info("the proxy is not told that this trainer is there, until it answers: %s", e)
                said = True
                continue
            if not answer.held and not self._ended.is_set():
                self._lost = answer
