"""A trained batch becomes a checkpoint, then an adapter, an event and an ack: each once, whenever the trainer is
killed.

claim a name             nobody else gets it; killed after, it is left out
save checkpoint          from here on the batch is trained: killed before, it is leased again and nothing of it remains
adapter: files, POST     a name with the same content may be posted again
event                    looked for before it is posted a second time
ack                      the same ack again changes nothing
mark the checkpoint told

All from the checkpoint on is done beside the trainer's next batch. The trainer waits for it before it keeps what comes
of that one, so only the newest checkpoint may have something left to tell. Where another trainer has taken over, all
of these are refused (``Fenced``).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from slipstream.client import Client
from slipstream.config import Config
from slipstream.contract import AdapterIn, AdapterList, BatchAck, BatchGaps, NameClaimIn, folder_of
from slipstream.errors import ApiError, SlipstreamError, Unavailable
from slipstream.shared.backoff import Backoff
from slipstream_trainer.timing import timed
from slipstream_trainer.versions.adapter_folder import next_version
from slipstream_trainer.versions.checkpoint import Checkpoints, CheckpointState
from slipstream_trainer.versions.events import Metrics, event
from slipstream_trainer.versions.learner import Fenced, LearnerLease, Stop, is_fence
from slipstream_trainer.versions.shipping import AdapterShipping, NameTaken

log = logging.getLogger(__name__)
T = TypeVar("T")

FIRST_PAUSE, LAST_PAUSE = 0.25, 10.0
"""Seconds between requests to a proxy that does not answer."""
STORE_LAG_S = 1.0
"""Seconds that a busy store may be behind an event that it was sent."""
RETRIED_STATUSES = (429, 500, 502, 503, 504)
REFUSED_ANSWER = (422, "body.path")
"""Status and field of the answer to a version that vLLM would never take."""


class Publisher:
    """Talks to the proxy, for as long as it takes: adapters, events, acks."""

    def __init__(
        self, config: Config, client: Client, checkpoints: Checkpoints, metrics: Metrics, stop: threading.Event
    ) -> None:
        self.config, self.client, self.checkpoints, self.metrics, self.stop = config, client, checkpoints, metrics, stop
        self.learner = LearnerLease(config, client, metrics, stop)
        self.shipping = AdapterShipping(config, client, self.patiently, stop)
        self._teller = ThreadPoolExecutor(1, "telling")
        self._telling: list[Future[None]] = []

    def patiently(self, ask: Callable[[], T], /) -> T:
        """Until it is answered. Raises ``Stop`` if the process is to end, ``Fenced`` where another trainer has taken
        over, and ``ApiError`` for what else is refused.
        """
        backoff, said = Backoff(FIRST_PAUSE, LAST_PAUSE), False
        while True:
            try:
                return ask()
            except ApiError as e:
                if is_fence(e):
                    self.learner.lose()
                    raise Fenced(str(e)) from e
                if not isinstance(e, Unavailable) and e.status not in RETRIED_STATUSES:
                    raise
                self.metrics.unreachable.inc()
                if not said:
                    log.warning("%s; trying until it answers", e)
                    said = True
            if backoff.wait(self.stop):
                raise Stop

    def adapters(self) -> AdapterList:
        return self.patiently(self.client.adapters)

    def new_name(self, known: AdapterList) -> str:
        """Of a version that is about to be written: the proxy gives it to nobody else."""
        model = self.config.model_name
        above = next_version(model, self.config.adapters_dir, known) - 1
        wanted = NameClaimIn(model=model, above=above, learner=self.learner.token)
        return self.patiently(lambda: self.client.claim_name(wanted)).name

    def publish(self, path: Path, state: CheckpointState, *, again: bool) -> None:
        """All that follows a checkpoint: adapter, event and ack. ``again``: a part of it may have been done before."""
        if self.checkpoints.told(path):
            return
        data = state.event.get("data", {})
        if state.adapter:
            with timed(data, "register"):
                self._adapter(path, state)
        self.metrics.times(data)
        if state.batch:
            self._event(state, again=again)
            self.ack(state.batch, _ack_of(state))
        self.checkpoints.set_told(path)

    def beside(self, part: Callable[[], None]) -> None:
        """Do it beside the next batch, after what was given before. ``finish`` waits for it."""
        self._telling.append(self._teller.submit(part))

    def finish(self) -> None:
        """Until all is told. Raises what kept it from being told, and ``Stop``."""
        telling, self._telling = self._telling, []
        for part in telling:
            part.result()

    def settle(self) -> None:
        """The same after a failure: what could not be told is told from the newest checkpoint."""
        with contextlib.suppress(Exception):
            self.finish()

    def check(self) -> None:
        """Raises what ``finish`` would, if that is known already."""
        if all(part.done() for part in self._telling):
            self.finish()

    def _adapter(self, path: Path, state: CheckpointState) -> None:
        """Until the proxy has it. What it cannot be told now is told at the next try, and the batch with it; what vLLM
        would never take is said, and the training goes on.
        """
        while True:
            name = str(state.adapter)
            batches = state.batches or ([state.batch] if state.batch else [])  # older checkpoints have no list
            wanted = AdapterIn(
                path=folder_of(name),
                model=self.config.model_name,
                step=state.step,
                parent=state.base or None,
                batches=batches,
                meta=state.meta,
                learner=self.learner.token,
            )
            try:
                self.shipping.register(path / "adapter", wanted)
                return
            except NameTaken as e:
                state.rename(self.new_name(self.adapters()))
                log.warning("%s, so this version is %s", e, state.adapter)
                self.checkpoints.rename(path, str(state.adapter))
            except Fenced:
                raise
            except SlipstreamError as e:
                if isinstance(e, ApiError) and (e.status, e.field) != REFUSED_ANSWER:
                    raise
                log.error("adapter %s was not taken: %s", name, e)
                return

    def _event(self, state: CheckpointState, *, again: bool) -> None:
        tries = 0

        def is_there() -> bool:
            kind = state.event["kind"]
            return any(e.kind == kind and e.data.get("batch") == state.batch for e in self.client.events())

        def post() -> None:
            nonlocal tries
            tries += 1
            if (again or tries > 1) and (is_there() or self.stop.wait(STORE_LAG_S) or is_there()):
                return
            self.client.post_event(event(state.event["kind"], **state.event["data"]))

        self.patiently(post)

    def ack(self, batch: str, ack: BatchAck) -> None:
        ack = ack.model_copy(update={"learner": self.learner.token})
        try:
            self.patiently(lambda: self.client.ack_batch(batch, ack))
        except ApiError as e:
            log.warning("batch %s: the ack was refused: %s", batch, e)

    def gaps_once(self, batch: str, gaps: BatchGaps) -> None:
        """For people who look at tokens, after what ``publish`` tells; lost when the proxy does not take it at once."""
        if gaps.calls:
            self.beside(lambda: self._gaps(batch, gaps))

    def _gaps(self, batch: str, gaps: BatchGaps) -> None:
        try:
            self.client.tell_gaps(batch, gaps)
        except ApiError as e:
            log.info("batch %s: its tokens' gaps were not taken: %s", batch, e)

    def post(self, kind: str, **data: object) -> None:
        """An event that may be lost or posted twice."""
        try:
            self.patiently(lambda: self.client.post_event(event(kind, **data)))
        except ApiError as e:
            log.warning("event %s was refused: %s", kind, e)

    def post_once(self, kind: str, **data: object) -> None:
        """An event that is lost when the proxy does not take it at once."""
        try:
            self.client.post_event(event(kind, **data))
        except ApiError as e:
            log.warning("event %s was not taken: %s", kind, e)


def _ack_of(state: CheckpointState) -> BatchAck:
    trained = state.outcome == "trained"
    return BatchAck(
        lease=state.lease,
        outcome="trained" if trained else "skipped",
        adapter=state.adapter,
        step=state.step if trained else None,
        reason=state.reason,
        advantages=state.advantages,
        words=state.words,
    )
