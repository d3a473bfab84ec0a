"""What the trainer does: lease, train, tell, for ever."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.client import Client, LeasedBatch
from slipstream.config import Config
from slipstream.contract import AdapterState, BatchAck, BatchLeaseIn
from slipstream.errors import ApiError, StartError
from slipstream_trainer.checkpoint import Checkpoints, State
from slipstream_trainer.commit import Stop, Teller
from slipstream_trainer.events import clean, line
from slipstream_trainer.guards import Snapshot
from slipstream_trainer.metrics import Metrics
from slipstream_trainer.publish import sweep
from slipstream_trainer.reporting import Reporter
from slipstream_trainer.rows import Sample, read_samples
from slipstream_trainer.sharing import Turns, worker_name

if TYPE_CHECKING:
    from slipstream_trainer.step import Result
    from slipstream_trainer.trainer import CapturedGRPOTrainer

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.25
LOOK_SECONDS = 2.0
"""Between looks at the adapters while there is nothing to train on."""
LEASE_SECONDS = 3600.0


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Two trainers on the same checkpoints would undo each other. Raises ``StartError``."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise StartError(f"another trainer works in {folder}") from e
        yield


class Worker:
    """Of the first process; the others follow it (``parallel.py``)."""

    def __init__(
        self, config: Config, client: Client, trainer: CapturedGRPOTrainer, turns: Turns | None = None
    ) -> None:
        self.config, self.client, self.trainer = config, client, trainer
        self.name = worker_name(config)
        self.checkpoints = Checkpoints(config.checkpoints_dir, config.trainer.keep_checkpoints)
        self.metrics = Metrics()
        self.stop = threading.Event()
        self.turns = turns or Turns(config, client, self.name)
        self.turns.stop = self.stop
        self.teller = Teller(config, client, self.checkpoints, self.metrics, self.stop)
        self.reporter = Reporter(trainer)
        self.state = State(weights=config.model_name)
        self.live = config.model_name
        self.taken: set[str] = set()
        """Adapters that were rolled back."""
        self._interruptible = False
        self._looked = 0.0
        self._bar: Any = None

    # signals

    def handle_signals(self) -> None:
        for sig in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sig, self._signalled)

    def _signalled(self, *_: object) -> None:
        self.stop.set()
        if self._interruptible:  # nothing of the batch is saved yet: it goes back
            self._interruptible = False
            raise Stop

    # the loop

    def run(self) -> int:
        t = self.config.trainer
        if t.metrics_port is not None:
            log.info(
                "metrics on http://%s:%d/metrics", t.metrics_host, self.metrics.serve(t.metrics_host, t.metrics_port)
            )
        sweep(self.config.adapters_dir)
        try:
            self.recover()
            self.teller.patiently(lambda: self.client.release(self.name))
            log.info("training %s from step %d, waiting for batches", self.config.model_name, self.state.step)
            while not self.stop.is_set() and (t.max_steps is None or self.state.step < t.max_steps):
                if not self.once():
                    self.stop.wait(IDLE_SECONDS)
        except Stop:
            pass
        self.reporter.end()
        with contextlib.suppress(ApiError):
            self.client.release(self.name)
        log.info("ended at step %d", self.state.step)
        return 0

    def once(self) -> bool:
        """One batch. False: there was none."""
        t = self.config.trainer
        wanted = BatchLeaseIn(
            worker=self.name, model=self.config.model_name, seconds=LEASE_SECONDS, min_groups=t.min_groups, max_groups=t.max_groups,
            max_wait=t.max_wait, max_staleness=t.max_staleness,
        )  # fmt: skip
        leased = self.teller.patiently(lambda: self.client.lease_batch(wanted))
        if leased is None:
            if time.monotonic() - self._looked > LOOK_SECONDS:
                self.look()
            return False
        self.look()
        result = self._train(leased)
        self._commit(leased, result)
        return True

    def _train(self, leased: LeasedBatch) -> Result:
        samples = read_samples(leased.table, self.trainer.vocab, self.config.trainer.max_staleness)
        for s in samples:
            if s.adapter in self.taken and s.trainable:  # leased before it was rolled back
                s.trainable, s.reason = False, "rolled_back"
        trainable = any(s.trainable for s in samples)  # else nobody has to wait for what is skipped
        turn_or_not: contextlib.AbstractContextManager[dict[str, float]] = (
            self.turns.take() if trainable else contextlib.nullcontext({})
        )
        with turn_or_not as turn:
            self._interruptible = True
            try:
                if self.stop.is_set():
                    raise Stop
                result = self.train(samples)
            finally:
                self._interruptible = False
        result.figures |= turn
        return result

    def train(self, samples: list[Sample]) -> Result:
        """Overridden where other processes take part."""
        from slipstream_trainer.step import train

        return train(self.trainer, samples, self.state.pace, self.state.step)

    def _commit(self, leased: LeasedBatch, result: Result) -> None:
        trained = result.outcome == "step"
        step = self.state.step + (1 if trained else 0)
        data = result.figures | {"batch": leased.id, "step": step, "parent": self.state.weights}
        if result.reason:
            data["reason"] = result.reason
        adapter = self.teller.new_name() if trained else None
        if adapter:
            data["adapter"] = adapter
        if result.outcome == "skipped":
            self.teller.post("skipped", **data)
            self.teller.ack(
                leased.id,
                BatchAck(lease=leased.lease, outcome="skipped", reason=result.reason, advantages=result.advantages),
            )
        else:
            state = State(
                step, self.state.pace, self.state.weights, adapter or self.state.weights, adapter, leased.id, leased.lease, "trained" if trained else "skipped", result.reason,
                {"kind": result.outcome, "data": clean(data)}, clean(result.advantages),
            )  # fmt: skip
            path = self._save(state)
            self.teller.tell(path, state, again=False)
            self.checkpoints.prune(self.live)
        self._said(result, step, data)

    def _save(self, state: State) -> Path:
        path = self.checkpoints.save(
            self.trainer.model, Snapshot.take(self.trainer.model, self.trainer.optimizer), state
        )
        self.state = state
        return path

    def _said(self, result: Result, step: int, data: dict[str, Any]) -> None:
        self.metrics.note(result.outcome, step, data)
        if result.outcome == "step":
            log.info("%s", line(data))
        else:
            log.warning("batch %s %s: %s", data["batch"], result.outcome, result.reason)
        if result.outcome == "step":
            self.reporter.step(step, data)
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = self._bar or tqdm(
                total=self.config.trainer.max_steps, initial=step - 1, unit="step", dynamic_ncols=True
            )
            self._bar.update(1 if result.outcome == "step" else 0)
            self._bar.set_postfix(
                {k: f"{data[k]:.3g}" for k in ("reward", "kl", "entropy") if isinstance(data.get(k), float)}
            )

    # where it stands

    def recover(self) -> None:
        """Go on from the newest checkpoint, and finish what it had not told yet; else from what is live; else from the start."""
        found = self.checkpoints.latest()
        if found is not None:
            self.state = self.checkpoints.load(found, self.trainer.model, self.trainer.optimizer)
            log.info("going on from %s (step %d, %s)", found.name, self.state.step, self.state.weights)
            self.teller.tell(found, self.state, again=True)
            self.look()
            return
        self._save_told(State(weights=self.config.model_name))
        self.live = live = self.teller.adapters().live.get(self.config.model_name, self.config.model_name)
        if "@" in live and not self.config.trainer.init_adapter:
            self._start_from(live)

    def _save_told(self, state: State) -> None:
        self.checkpoints.set_told(self._save(state))

    def _start_from(self, live: str) -> None:
        """No checkpoint has its optimiser: the adapter's weights alone."""
        from slipstream_trainer.policy import load_adapter

        load_adapter(self.trainer.model, self.config.adapters_dir / live)
        self.trainer.optimizer.state.clear()
        log.info("starting from the live adapter %s", live)
        self._save_told(State(step=self.state.step, pace=self.state.pace, weights=live))

    def look(self) -> None:
        """Was what we published taken back? Then go back too: weights and optimiser of the version that is live."""
        self._looked = time.monotonic()
        known = self.teller.adapters()
        self.live = known.live.get(self.config.model_name, self.config.model_name)
        self.taken = {a.name for a in known.adapters if a.state == AdapterState.ROLLED_BACK}
        if self.state.weights in self.taken:
            self._go_back(self.state.weights)

    def _go_back(self, taken: str) -> None:
        found = self.checkpoints.of_weights(self.live)
        step, pace = self.state.step, self.state.pace
        if found is not None:
            old = self.checkpoints.load(found, self.trainer.model, self.trainer.optimizer, generators=False)
            self._save_told(State(step=step, pace=pace, base=old.base, weights=self.live))
        elif "@" in self.live:
            self._start_from(self.live)
        else:
            raise StartError(
                "everything was rolled back and the first checkpoint is gone: remove the checkpoints folder to start anew"
            )
        log.warning("%s was rolled back: going on from %s", taken, self.state.weights)
        self.teller.post("restored", taken_back=taken, adapter=self.state.weights, step=step)
