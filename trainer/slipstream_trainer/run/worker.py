"""The trainer's loop: lease a batch, train on it, publish what came of it."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from slipstream.client import Client, LeasedBatch
from slipstream.config import Config
from slipstream.contract import BatchAck, BatchGaps, BatchLeaseIn
from slipstream.errors import ApiError, ConfigError
from slipstream.shared.backoff import Backoff
from slipstream_trainer.algorithm.cadence import Cadence
from slipstream_trainer.batch.rows import Sample, read_samples
from slipstream_trainer.model.adapter import halves_of
from slipstream_trainer.model.memory import gpu_is_broken
from slipstream_trainer.run.gpu_lease import GpuLease
from slipstream_trainer.run.trial import ShapeTrial
from slipstream_trainer.timing import add, timed
from slipstream_trainer.versions.adapter_folder import sweep
from slipstream_trainer.versions.checkpoint import Checkpoints, CheckpointState
from slipstream_trainer.versions.common_start import CommonStart, Others
from slipstream_trainer.versions.current_policy import FORGOTTEN_REASON, CurrentPolicy
from slipstream_trainer.versions.events import Metrics, clean, line
from slipstream_trainer.versions.learner import Fenced, Stop
from slipstream_trainer.versions.publisher import Publisher
from slipstream_trainer.versions.reporting import Reporter
from slipstream_trainer.versions.turns import TrainerTurns

if TYPE_CHECKING:
    from slipstream_trainer.step.result import Result
    from slipstream_trainer.step.trainer import CapturedGRPOTrainer

log = logging.getLogger(__name__)

IDLE_SECONDS, LONG_IDLE_SECONDS = 0.1, 5.0
"""Between looks for a batch: at first, and at most, where tenants are many and this one has long had none."""
LOOK_SECONDS, LOOK_SOON = 2.0, 0.1
"""Between looks at the adapters while there is nothing to train on; while steps wait to be published."""
LEASE_SECONDS = 3600.0
FIRST_PAUSE, LAST_PAUSE = 1.0, 60.0
"""Seconds before the trainer goes on after a failure; longer after each in a row."""
SAME_BATCH = 2
"""Failures on the same groups after which they are skipped."""


def uninterrupted() -> None:
    """What has begun is finished."""


class Worker:
    """The trainer's main loop, in the first process. The other processes follow it (``process_group.py``)."""

    def __init__(
        self,
        config: Config,
        client: Client,
        trainer: CapturedGRPOTrainer,
        gpu_lease: GpuLease | None = None,
        turns: TrainerTurns | None = None,
        others: Others | None = None,
    ) -> None:
        """``turns``: that it takes with others. None: it has the trainer alone, until others join it. ``others``: with
        whom it has a common start. None: with nobody.
        """
        self.config, self.client, self.trainer = config, client, trainer
        self.seat = (turns or TrainerTurns(trainer, config.trainer.tenants_gb * 1e9)).seat(config)
        checkpoints = Checkpoints(config.checkpoints_dir, config.trainer.keep_checkpoints, config.adapters_dir)
        self.metrics = Metrics()
        self.stop = threading.Event()
        self.publisher = Publisher(config, client, checkpoints, self.metrics, self.stop)
        self.learner = self.publisher.learner
        self.gpu_lease = gpu_lease or GpuLease(config, client, self.learner.name)
        if turns is None:
            self.gpu_lease.stop = self.stop
        common = None
        if others is not None:
            like = halves_of(self.seat.turns.start.weights)
            common = CommonStart(config, others, like, self.publisher.patiently, self.stop)
        self.current = CurrentPolicy(config, self.seat, checkpoints, self.publisher, common)
        self.reporter = Reporter(trainer, config)
        self.cadence = Cadence()
        self.failures = 0
        """In a row."""
        self.backoff = Backoff(FIRST_PAUSE, LAST_PAUSE, 4.0)
        self._idle = Backoff(IDLE_SECONDS, LONG_IDLE_SECONDS, 1.5)
        self.broken = False
        """The GPU's context is lost, or other processes wait for this one in the middle of a step."""
        self.batch = ""
        """The batch that was leased last."""
        self.failed: Counter[str] = Counter()
        """Groups → how often training on them failed, since it worked last."""
        self.trial = ShapeTrial(config, self.seat, self.publisher)
        self._free_since = time.perf_counter()
        """When the batch before was done with."""

    # signals

    def handle_signals(self) -> None:
        for sig in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sig, lambda *_: self.stop.set())

    def _interrupt(self) -> None:
        """Between two passes."""
        if self.stop.is_set():  # nothing of the batch is saved yet: it goes back
            raise Stop

    # the loop

    def run(self) -> int:
        """→ Exit code: 0 when it was asked to end, 1 when only a new process can go on (``broken``)."""
        t = self.config.trainer
        if t.metrics_port is not None and not self.config.tenant:
            log.info(
                "metrics on http://%s:%d/metrics", t.metrics_host, self.metrics.serve(t.metrics_host, t.metrics_port)
            )
        sweep(self.config.adapters_dir, f"{self.learner.record.name}-")
        try:
            while not self.stop.is_set() and self._stretch():
                pass
        except Stop:
            pass
        except ConfigError:
            self.stop.set()  # whoever reads why is not kept waiting by a proxy that does not answer
            self._end()
            raise
        self.reporter.end()
        self._end()
        log.info("ended at step %d", self.current.state.step)
        return 1 if self.broken else 0

    def _end(self) -> None:
        """Tell what is left to tell, and give back what is leased. What fails is told at the next start."""
        if self.broken:
            self.stop.set()  # whoever starts the next process is not kept waiting by a proxy that does not answer
        try:
            self.publisher.finish()
        except Stop:
            pass
        except Exception as e:
            log.warning("the last batch is not told yet: %s", e)
        with contextlib.suppress(ApiError):
            if self.learner.held:
                self.client.release(self.learner.name)
            self.learner.end()

    def _stretch(self) -> bool:
        """From a recovery to the next failure. False: there is no point in going on."""
        t = self.config.trainer
        try:
            self.begin()
            log.info("training %s from step %d, waiting for batches", self.config.model_name, self.current.state.step)
            while not self.stop.is_set() and (t.max_steps is None or self.current.state.step < t.max_steps):
                if self.once():
                    self._idle.reset()
                else:
                    self.rest()
                self.failures = 0
                self.backoff.reset()
            if self.current.state.ahead and not self.stop.is_set():
                self.current.publish(self.publisher.adapters())
            self.publisher.finish()
        except ConfigError:
            raise  # no further try can help
        except Fenced as e:
            log.warning("%s: what this one has learned since counts for nothing", e)
            return True
        except Exception as e:
            return self._failed(e)
        return False

    def rest(self) -> None:
        """As many looks a second come of many tenants as of one."""
        self.stop.wait(min(self._idle.next(), IDLE_SECONDS * len(self.seat.turns.seats)))

    def waits_for_work(self) -> None:
        """Until there is a first batch, or what an earlier start has learned. Before it nothing is written."""
        wanted = self._wanted(stored=False).model_copy(update={"learner": None})
        while not self.stop.is_set() and not self.current.checkpoints.all():
            with contextlib.suppress(Fenced):  # another trainer learns for it
                if self.publisher.patiently(lambda: self.client.lease_batch(wanted)) is not None:
                    return  # ``begin`` gives it back
            self.rest()

    def begin(self) -> None:
        """Be the one trainer, and have its weights. Waits while another is it."""
        anew = self.learner.hold(self.publisher.patiently, self.idle)
        self.current.recover(anew=anew)
        self.learner.settle()
        self.publisher.patiently(lambda: self.client.release(self.learner.name))

    def idle(self) -> None:
        """Overridden where other processes wait with this one."""

    def _failed(self, error: Exception) -> bool:
        """A failure costs a pause, never the trainer. Weights come from the checkpoint, the batch again. → Go on?"""
        self.failures += 1
        self.metrics.failures.inc()
        log.error("the trainer failed (%d in a row)", self.failures, exc_info=error)
        self.publisher.post_once(
            "failed", reason=f"{type(error).__name__}: {error}", batch=self.batch, failures=self.failures
        )
        self.broken = self.trainer.world > 1 or gpu_is_broken(self.trainer.device)
        self.backoff.wait(self.stop)
        return not self.broken

    def once(self) -> bool:
        """One batch. False: there was none. Far from the policy that the engine has, only stored groups make one."""
        t = self.config.trainer
        self.learner.check()
        self.publisher.check()
        # what is stored is older than the engine's policy anyway
        stored = self.current.state.ahead >= max(1, t.max_staleness)
        self.trial.begin()
        self.trial.settle(wait=False)
        self.current.consider_offer()
        wanted = self._wanted(stored=stored)
        leased = self.publisher.patiently(lambda: self.client.lease_batch(wanted))
        if leased is None:
            if not stored:
                self.publisher.finish()
            self._look(LOOK_SOON if self.current.state.ahead else LOOK_SECONDS)
            return False
        waited = time.perf_counter() - self._free_since
        self.current.look()
        self.batch = leased.id
        groups = set(leased.packed.column("group").to_pylist())
        if any(self.failed[g] >= SAME_BATCH for g in groups):
            self._skip(leased, f"training failed {SAME_BATCH} times on groups of this batch")
            return True
        try:
            result = self._train(leased)
        except Exception:
            self.failed.update(groups)
            raise
        self.failed.clear()
        add(result.figures, "wait", waited)
        self._commit(leased, result)
        self._free_since = time.perf_counter()
        return True

    def _wanted(self, *, stored: bool) -> BatchLeaseIn:
        t = self.config.trainer
        min_groups, max_wait = self.cadence.wanted(t)
        return BatchLeaseIn(
            worker=self.learner.name,
            model=self.config.model_name,
            learner=self.learner.token,
            seconds=LEASE_SECONDS,
            min_groups=min_groups,
            max_groups=t.max_groups,
            max_wait=max_wait,
            max_staleness=t.max_staleness,
            form="deltas",
            equal="whole" if t.algorithm == "sft" else "rewards",
            stored=stored,
        )

    def _look(self, seconds: float) -> None:
        if time.monotonic() - self.current.looked > seconds:
            self.current.look()

    def _train(self, leased: LeasedBatch) -> Result:
        began = time.perf_counter()
        samples = read_samples(leased.packed, self.trainer.learner.vocab)
        read = time.perf_counter() - began
        self.cadence.note(self.config.trainer, samples, self.current.control())
        for s in samples:
            if s.adapter in self.current.taken and s.trainable:  # leased before it was rolled back
                s.trainable, s.reason = False, "rolled_back"
        wanted, asked = sum(len(s.completion_C) for s in samples if s.trainable), time.perf_counter()
        with self.seat.turn(wanted) as trainer:
            waited = time.perf_counter() - asked
            result = self._in_turn(trainer, samples, gpu=bool(wanted))  # nobody has to wait for what is skipped
            tokens = result.figures.get("tokens")
            self.seat.trained(tokens if isinstance(tokens, int) else 0)
        add(result.figures, "read", read)
        if len(self.seat.turns.seats) > 1:
            add(result.figures, "turn", waited)
        return result

    def _in_turn(self, trainer: CapturedGRPOTrainer, samples: list[Sample], *, gpu: bool) -> Result:
        weights = self.current.state.weights
        elsewhere = weights == self.config.model_name and trainer.learner.changes_base  # trainer.init_adapter
        for s in samples:
            s.own = s.adapter == weights and not elsewhere
        turn_or_not: contextlib.AbstractContextManager[dict[str, float]] = (
            self.gpu_lease.take() if gpu else contextlib.nullcontext({})
        )
        with turn_or_not as figures:
            trainer.interrupt = self._interrupt
            try:
                self._interrupt()
                result = self.train(samples)
            finally:
                trainer.interrupt = uninterrupted
        result.figures |= figures
        return result

    def train(self, samples: list[Sample]) -> Result:
        """Overridden where other processes take part."""
        from slipstream_trainer.step.step import train

        state = self.current.state
        return train(self.trainer, samples, state.pace, state.step, state.traffic)

    def _commit(self, leased: LeasedBatch, result: Result) -> None:
        self.trial.settle(wait=True)  # a batch is not used up for adapters that nobody is served by
        self.publisher.finish()
        with timed(result.figures, "name"):
            known, before = self.publisher.adapters(), self.current.state
            self.current.note(known)
        if result.outcome == "step" and (why := self._undone(leased, before)):
            reason, outcome = why
            self._skip(leased, reason, result, outcome)
            return
        if result.outcome == "skipped":
            self._skip(leased, result.reason or "", result)
            return
        trained = result.outcome == "step"
        with timed(result.figures, "name"):
            adapter = self.publisher.new_name(known) if trained and self.current.has_room(known) else None
        ahead = 0 if adapter else before.ahead + trained
        data = result.figures | {"batch": leased.id, "step": before.step + trained, "parent": before.published}
        data |= {"unpublished": ahead} if ahead else {}
        data |= {"reason": result.reason} if result.reason else {}
        data |= {"adapter": adapter} if adapter else {}
        data |= {"waits_for_groups": self.cadence.wanted(self.config.trainer)[0]}
        state = CheckpointState(
            step=before.step + trained,
            pace=before.pace,
            traffic=before.traffic,
            base=before.published,
            weights=adapter or (f"{before.published}+{ahead}" if ahead else before.weights),
            ahead=ahead,
            batches=[*before.unpublished, *([leased.id] if trained else [])],
            adapter=adapter,
            batch=leased.id,
            lease=leased.lease,
            outcome="trained" if trained else "skipped",
            reason=result.reason,
            event={"kind": result.outcome, "data": clean(data)},
            advantages=clean(result.advantages),
            words=clean(result.words),
        )
        self.current.advance(state, known)
        self.publisher.gaps_once(leased.id, BatchGaps(lease=leased.lease, calls=result.gaps))
        self._report(result.outcome, state.step, data)
        self.reporter.version(state, data)

    def _undone(
        self, leased: LeasedBatch, before: CheckpointState
    ) -> tuple[str, Literal["skipped", "released"]] | None:
        """Why the step counts for nothing, and what becomes of its groups. The weights are those of before."""
        rolled_back = self.current.fallen
        anew = rolled_back is not None and self.current.known[rolled_back].anew
        if self.current.go_back_if_taken():
            if anew:
                return (
                    f"{rolled_back} is made anew, and {before.weights}, which this step started from, with it",
                    "released",
                )
            if rolled_back:
                return f"{before.weights}, which this step started from, was rolled back meanwhile", "skipped"
            return f"{FORGOTTEN_REASON} that {before.weights}, which this step started from, was trained on", "released"
        if leased.id not in self.current.forgotten:
            return None
        self.current.undo()
        return f"{FORGOTTEN_REASON} of this batch", "released"

    def _skip(
        self,
        leased: LeasedBatch,
        reason: str,
        result: Result | None = None,
        outcome: Literal["skipped", "released"] = "skipped",
    ) -> None:
        """The batch changes nothing: an event and an ack say why."""
        self.publisher.finish()
        data: Mapping[str, object] = (result.figures if result else {}) | {
            "batch": leased.id,
            "step": self.current.state.step,
            "parent": self.current.state.weights,
            "reason": reason,
        }
        self.publisher.post("skipped", **data)
        found = {"advantages": result.advantages, "words": result.words} if result else {}
        self.publisher.ack(leased.id, BatchAck(lease=leased.lease, outcome=outcome, reason=reason, **found))
        if result is not None:
            self.publisher.gaps_once(leased.id, BatchGaps(lease=leased.lease, calls=result.gaps))
        self._report("skipped", self.current.state.step, data)

    def _report(self, outcome: str, step: int, data: Mapping[str, object]) -> None:
        self.metrics.note(outcome, step, data)
        if outcome == "step":
            log.info("%s", line(data))
            self.reporter.step(step, data)
        else:
            log.warning("batch %s %s: %s", data["batch"], outcome, data.get("reason"))
        self.reporter.show(outcome, step, data)
