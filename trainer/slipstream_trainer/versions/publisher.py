"""A trained batch becomes a checkpoint, then an adapter, an event and an ack: each once, whenever the trainer is
killed.

save checkpoint          from here on the batch is trained: killed before, it is leased again and nothing of it remains
adapter: files, POST     a name with the same content may be posted again
event                    looked for before it is posted a second time
ack                      the same ack again changes nothing
mark the checkpoint told

What follows the adapter is told while the trainer works on its next batch. It waits for that before it saves the next
checkpoint, so only the newest one may have something left to tell.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from slipstream.client import Client
from slipstream.config import Config
from slipstream.contract import AdapterIn, AdapterList, BatchAck, BatchGaps, folder_of
from slipstream.errors import ApiError, SlipstreamError, Unavailable
from slipstream.shared.backoff import Backoff
from slipstream_trainer.model.adapter import check_adapter
from slipstream_trainer.versions.adapter_folder import next_version, rename_whole
from slipstream_trainer.versions.checkpoint import Checkpoints, CheckpointState
from slipstream_trainer.versions.events import Metrics, event

log = logging.getLogger(__name__)
T = TypeVar("T")

FIRST_PAUSE, LAST_PAUSE = 0.25, 10.0
"""Seconds between requests to a proxy that does not answer."""
STORE_LAG_S = 1.0
"""Seconds that a busy store may be behind an event that it was sent."""
RETRIED_STATUSES = (429, 500, 502, 503, 504)


class Stop(BaseException):
    """The process was asked to end; not an Exception, so that nobody on the way takes it for an error."""


class Publisher:
    """Talks to the proxy, for as long as it takes: adapters, events, acks."""

    def __init__(
        self, config: Config, client: Client, checkpoints: Checkpoints, metrics: Metrics, stop: threading.Event
    ) -> None:
        self.config, self.client, self.checkpoints, self.metrics, self.stop = config, client, checkpoints, metrics, stop
        self._teller = ThreadPoolExecutor(1, "telling")
        self._telling: list[Future[None]] = []

    def patiently(self, ask: Callable[[], T]) -> T:
        """Until it is answered. Raises ``Stop`` if the process is to end, and ``ApiError`` for what is refused."""
        backoff, said = Backoff(FIRST_PAUSE, LAST_PAUSE), False
        while True:
            try:
                return ask()
            except ApiError as e:
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
        model = self.config.model_name
        return f"{model}@{next_version(model, self.config.adapters_dir, known)}"

    def publish(self, path: Path, state: CheckpointState, *, again: bool) -> None:
        """All that follows a checkpoint: adapter, then event and ack, which ``finish`` waits for.

        ``again``: a part of it may have been done before.
        """
        self.finish()
        if self.checkpoints.told(path):
            return
        if state.adapter:
            self._adapter(path, state)
        self._telling.append(self._teller.submit(self._tell, path, state, again=again))

    def finish(self) -> None:
        """Until all is told. Raises what kept it from being told, and ``Stop``."""
        telling, self._telling = self._telling, []
        for part in telling:
            part.result()

    def check(self) -> None:
        """Raises what ``finish`` would, if that is known already."""
        if all(part.done() for part in self._telling):
            self.finish()

    def _tell(self, path: Path, state: CheckpointState, *, again: bool) -> None:
        if state.batch:
            self._event(state, again=again)
            self.ack(state.batch, _ack_of(state))
        self.checkpoints.set_told(path)

    def _adapter(self, path: Path, state: CheckpointState) -> None:
        name = str(state.adapter)
        final = self.config.adapters_dir / folder_of(name)
        try:
            if not final.exists():
                put_adapter(path / "adapter", final, self.config.engine.max_lora_rank)
            batches = state.batches or ([state.batch] if state.batch else [])  # older checkpoints have no list
            wanted = AdapterIn(
                path=final.name,
                model=self.config.model_name,
                step=state.step,
                parent=state.base or None,
                batches=batches,
            )
            self.patiently(lambda: self.client.add_adapter(wanted))
        except (SlipstreamError, OSError) as e:
            log.error("adapter %s was not taken: %s", name, e)

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
        try:
            self.patiently(lambda: self.client.ack_batch(batch, ack))
        except ApiError as e:
            log.warning("batch %s: the ack was refused: %s", batch, e)

    def gaps_once(self, batch: str, gaps: BatchGaps) -> None:
        """For people who look at tokens, after what ``publish`` tells; lost when the proxy does not take it at once."""
        if gaps.calls:
            self._telling.append(self._teller.submit(self._gaps, batch, gaps))

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


def put_adapter(source: Path, final: Path, max_rank: int) -> None:
    """Copy an adapter's files so that ``final`` appears whole. Raises ``SlipstreamError`` if vLLM would refuse them."""
    if why := check_adapter(source, max_rank):
        raise SlipstreamError(f"vLLM would refuse it: {why}")
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.parent / f".tmp-trainer-{os.getpid()}-{final.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(source, temporary)
    rename_whole(temporary, final)
