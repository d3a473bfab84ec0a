"""``Learner`` behind the Tinker API: loss, guards and versions stay here; passes and steps are the service's.

Gradients are sent with the step: what is refused before it leaves nothing behind at the service, which has no way to
forget a gradient. A step is made shorter by going back and stepping again with a smaller rate, and clipped likewise.
"""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from safetensors.torch import load_file

from slipstream.errors import ConfigError, StartError
from slipstream.plugins import settings_of
from slipstream.shared.adapter_config import WEIGHTS_FILE_NAME
from slipstream_tinker import TINKER_PLUGIN
from slipstream_tinker.service import (
    REDUCTION_BY_NAME,
    Reals,
    Reduction,
    ScoredChain,
    ServiceFailed,
    TinkerRun,
    TinkerService,
    calibrate,
)
from slipstream_tinker.settings import TinkerSettings
from slipstream_trainer.batch.layout import MicroBatch, Plan, make_plan
from slipstream_trainer.model.compute import ScoredPositions
from slipstream_trainer.model.learner import Capabilities, Learner, Passed
from slipstream_trainer.model.policy import context_of, described_as, model_path
from slipstream_trainer.model.weights import Snapshot
from slipstream_trainer.step.trl_seam import betas_of

if TYPE_CHECKING:
    from slipstream.config import Config
    from slipstream_trainer.batch.rows import Sample
    from slipstream_trainer.batch.work import Lesson, Work

log = logging.getLogger(__name__)
STATE_KEY, ADAPTER_KEY = "state", "adapter"
"""In a snapshot: the addresses of what the service keeps. An empty state is the LoRA as its seed makes it."""
ADAM_EPS = 1e-8
LORA_ALPHA = 32.0
"""The services' own, whatever the rank."""


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """A micro-batch's slopes, and where they stand."""

    chains: list[ScoredChain]
    logprobs: list[Reals]
    slopes: list[Reals]


def chains_of(micro: MicroBatch) -> tuple[list[ScoredChain], list[np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    """A micro-batch's rows as chains, and which of its slots each chain scores. A row is repeated where a place was
    followed by several tokens, as in runs that end differently.
    """
    width = micro.ids_RN.shape[1]
    row_S, place_S = np.divmod(micro.slots.source_S, width)
    order = np.lexsort((place_S, row_S))
    again = np.zeros(len(order), np.int64)
    """How often the same place came before."""
    for before, at in itertools.pairwise(order):
        if (row_S[before], place_S[before]) == (row_S[at], place_S[at]):
            again[at] = again[before] + 1
    chains, slots = [], []
    for row, turn in sorted({*zip(row_S.tolist(), again.tolist(), strict=True)}):
        mine = np.flatnonzero((row_S == row) & (again == turn))
        length = int(place_S[row_S == row].max()) + 1  # a chain ends before its last scored token
        chains.append(ScoredChain(micro.ids_RN[row, :length], place_S[mine], micro.slots.target_S[mine]))
        slots.append(mine)
    return chains, slots


def check_around(config: Config) -> None:
    """Raises ``ConfigError`` for settings of other parts that ask for what is lost."""
    found = [
        f'models."{name}".explore_temperature = {route.explore_temperature:g}: log-probabilities are those of '
        f'temperature 1: set models."{name}".explore_temperature = 1.0'
        for name, route in config.models.items()
        if route.explore and route.explore_temperature != 1.0
    ]
    if config.engine.share:
        found.append("engine.share = true: the trainer has no GPU to share: set engine.share = false")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        found.append("--processes: the steps are computed elsewhere: start one process")
    if found:
        raise ConfigError(f"trainer.backend = 'tinker' can't do it. {'. '.join(found)}")


class TinkerLearner(Learner):
    capabilities = Capabilities(
        tenants=False,
        vocabulary=False,
        settings={
            "lora_alpha": ((LORA_ALPHA,), "the service multiplies a LoRA by 32 / rank"),
            "lora_targets": (("all-linear",), "the service adapts all of attention and MLP"),
            "rslora": ((False,), "the service multiplies a LoRA by 32 / rank"),
            "init_adapter": ((None,), "the service takes no adapter of another trainer"),
            "mode": (("auto", "merged"), "the service computes each chain alone"),
            "quantize": (("none",), "the base weights are the service's"),
            "sharding": (("ddp",), "the base weights are the service's"),
            "inner_steps": ((1,), "a step is shortened by stepping again from before it"),
            "words_weight": ((1.0, 0.0), "the service gives no distributions, so words about replies are left out"),
        },
    )

    @classmethod
    def start(cls, config: Config) -> Self:
        settings = settings_of(config.plugins, TINKER_PLUGIN)
        assert isinstance(settings, TinkerSettings)
        check_around(config)
        path = model_path(config)
        text = described_as(path).get_text_config()
        service = TinkerService(
            settings.url,
            settings.base_model or path,
            vocab=int(text.vocab_size),
            context=context_of(path),
            deadline=settings.deadline,
        )
        _ = service.tinker  # a client that is missing ends the start
        made = cls(service, config, REDUCTION_BY_NAME.get(settings.reduction))
        made.hidden, made.vocab = int(text.hidden_size), int(text.vocab_size)
        try:
            made.save()
        except ServiceFailed as e:
            raise StartError(f"{e}; plugins.tinker.url = {settings.url!r}, base_model = {service.model!r}") from e
        return made

    def __init__(self, service: TinkerService, config: Config, reduction: Reduction | None) -> None:
        """``reduction``: None: found out."""
        self.service, self.config, self.wanted = service, config, reduction
        self.reduction = reduction
        self._run: TinkerRun | None = None
        self._reference: TinkerRun | None = None
        self._refers = False
        self._fresh = ""
        """The address of this run's start."""
        self._state: str | None = ""
        """The address of the weights as they are; None: they are nowhere yet."""
        self._pending: list[Gradient] = []
        self._sent: tuple[list[Gradient], float, float] | None = None
        """The newest step's gradient, its rate, and what its slopes were multiplied by."""
        self._passed: dict[int, tuple[MicroBatch, torch.Tensor]] = {}
        """Micro-batches of these weights."""

    @property
    def run(self) -> TinkerRun:
        """What learns. After a failure it is made anew, from the state that was restored last."""
        if self._run is None or self._run.ended:
            t = self.config.trainer
            self._reference = self.service.run(t.lora_rank, t.seed)
            self.reduction = self.wanted or calibrate(self._reference)
            self._run = self.service.run(t.lora_rank, t.seed)
            self._fresh = self._run.save()
            if self._state:
                self._run.load(self._state)
            how = "divides by chains" if self.reduction.chains else "sums"
            log.info("%s computes the steps, and %s", self.service.url, how)
        return self._run

    # a batch

    def fault(self, sample: Sample) -> str | None:
        if self.config.trainer.algorithm == "sft":
            return None
        if sample.temperature != 1.0:
            return "temperature_not_1"
        if sample.filter is not None:
            return "sampling_filters"
        if sample.hint is not None and not np.isfinite(sample.reward):
            return "words_alone"
        sample.hint = None
        return None

    def plan(self, samples: Sequence[Sample]) -> Plan:
        self._passed.clear()
        budget = min(self.config.trainer.token_budget, self.service.context)
        return make_plan(samples, layout="merged", budget=budget)

    def logprobs(
        self,
        micro: MicroBatch,
        work: Work,
        places_P: torch.Tensor | None = None,
        old_PH: torch.Tensor | None = None,
        lesson: Lesson | None = None,
    ) -> Passed:
        """The entropy of a token's place is estimated by the token: minus its log-probability."""
        source, target, token = (
            torch.from_numpy(x) for x in (micro.slots.source_S, micro.slots.target_S, micro.slots.token_S)
        )
        known = self._passed.get(id(micro))
        if self._refers or known is None:
            chains, slots = chains_of(micro)
            run = self.run
            found = (self._reference if self._refers and self._reference else run).logprobs(chains)
            logprobs_S = torch.zeros(len(source))
            for at, values in zip(slots, found, strict=True):
                logprobs_S[torch.from_numpy(at)] = torch.from_numpy(values).float()
            known = micro, logprobs_S
            if not self._refers:
                self._passed[id(micro)] = known
        return known[1], -known[1], token, ScoredPositions(source, target, None)

    def backward(
        self, micro: MicroBatch, logprobs_S: torch.Tensor, slope_S: torch.Tensor, words: torch.Tensor | None = None
    ) -> None:
        chains, slots = chains_of(micro)

        def parts(values_S: torch.Tensor) -> list[Reals]:
            return [values_S.detach().double().numpy()[at] for at in slots]

        self._pending.append(Gradient(chains, parts(logprobs_S), parts(slope_S)))

    def gathered(self, plan: Plan, seconds: float) -> None:
        """All is here already."""

    def zero_grads(self) -> None:
        self._pending.clear()

    def clip(self) -> None:
        """Before the step nobody knows the norm."""
        return

    def step(self, rate: float) -> float | None:
        """Clipped by stepping again: the norm is known only then."""
        before, gradient = self._state, list(self._pending)
        self._pending.clear()
        norm = self._step(gradient, rate, 1.0)
        most = self.config.trainer.max_grad_norm
        if norm is not None and norm > most and before is not None:
            self._load(before)
            self._step(gradient, rate, most / norm)
        return norm

    def _step(self, gradient: list[Gradient], rate: float, scale: float) -> float | None:
        t, run = self.config.trainer, self.run
        self._state = None
        self._passed.clear()
        count = sum(len(g.chains) for g in gradient)
        for g in gradient:
            slopes = [s * scale * self._undo(len(s), count) for s in g.slopes]
            run.backward(g.chains, g.logprobs, slopes)
        beta1, beta2 = betas_of(t)
        adam = {"learning_rate": rate, "beta1": beta1, "beta2": beta2, "eps": ADAM_EPS, "weight_decay": t.weight_decay}
        norm = run.step(**adam, grad_clip_norm=t.max_grad_norm)
        self._sent = gradient, rate, scale
        return norm

    def _undo(self, scored: int, chains: int) -> float:
        return self.reduction.undo(scored, chains) if self.reduction else 1.0

    # weights

    def save(self, *, keep: bool = False) -> Snapshot:
        run = self.run
        if self._state is None:
            self._state = run.save()
        kept: dict[str, object] = {STATE_KEY: self._state}
        if keep:
            kept[ADAPTER_KEY] = run.publish()
        return Snapshot({}, kept)

    def restore(self, snapshot: Snapshot) -> None:
        self._pending.clear()
        self._load(str(snapshot.optimizer[STATE_KEY]))

    def _load(self, state: str) -> None:
        self._passed.clear()
        if self._run is None or self._run.ended:
            self._state = state
            _ = self.run
        elif state != self._state:
            self._run.load(state or self._fresh)
            self._state = state

    def resize(self, snapshot: Snapshot, factor: float) -> None:
        """The same step again, from before it, with another rate."""
        if self._sent is None:
            raise RuntimeError("there was no step")
        gradient, rate, scale = self._sent
        self.restore(snapshot)
        self._step(gradient, rate * factor, scale)

    def adopt(self, snapshot: Snapshot, scales: dict[str, float] | None, whose: str) -> bool:
        if STATE_KEY not in snapshot.optimizer:
            raise StartError(f"{whose} was made with another trainer.backend")
        try:
            self.restore(snapshot)
        except ServiceFailed as e:
            self._state = ""
            raise StartError(f"{whose} can't be gone on from: {e}") from e
        return False

    def scales(self) -> dict[str, float]:
        return {}

    def load(self, folder: Path) -> None:
        raise StartError(
            f"{folder} can't be loaded: the service takes no adapter, only states that it saved itself "
            "(trainer.backend = 'torch' goes on from adapters)"
        )

    def distance(self, folder: Path) -> float:
        with tempfile.TemporaryDirectory() as made:
            self.adapter(Path(made))
            ours, theirs = load_file(Path(made) / WEIGHTS_FILE_NAME), load_file(folder / WEIGHTS_FILE_NAME)
        if {n: w.shape for n, w in ours.items()} != {n: w.shape for n, w in theirs.items()}:
            raise StartError(f"{folder} has other weights than the service's adapter")
        apart = sum(float((ours[n].double() - w.double()).square().sum()) for n, w in theirs.items())
        return float((apart / max(1e-30, sum(float(w.double().square().sum()) for w in theirs.values()))) ** 0.5)

    def adapter(self, folder: Path, snapshot: Snapshot | None = None) -> None:
        address = str(snapshot.optimizer[ADAPTER_KEY]) if snapshot else self.run.publish()
        self.service.fetch(address, folder, model_path(self.config))

    @property
    def changes_base(self) -> bool:
        """The start is the base model."""
        return False

    # the policy that is held to

    @contextmanager
    def reference(self) -> Iterator[None]:
        self._refers = True
        try:
            yield
        finally:
            self._refers = False

    def hold(self, start: Snapshot, folder: Path | None) -> None:
        if folder is not None:
            raise ConfigError("the service takes no adapter: beta holds to the base model")
