"""What computes, seen from the algorithm: log-probabilities, a backward pass of slopes, the optimiser's step.

A loss (``step/``, ``algorithm/``) is made of log-probabilities alone. So whoever gives them, takes the loss's slopes at
them and steps can be the learner: a model in this process (``TorchLearner``), or a service.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch

from slipstream.config import Config
from slipstream.errors import ConfigError
from slipstream.tenants import known_tenants
from slipstream_trainer.batch.layout import MicroBatch, Plan
from slipstream_trainer.batch.work import Lesson, Work
from slipstream_trainer.model.compute import ScoredPositions
from slipstream_trainer.model.weights import Snapshot

if TYPE_CHECKING:
    from slipstream_trainer.batch.rows import Sample

Passed = tuple[torch.Tensor, torch.Tensor, torch.Tensor, ScoredPositions]
"""A micro-batch's log-probabilities in nats, their entropies, and which tokens of the batch they are, each (S)."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a learner computes beside log-probabilities and their gradient."""

    tenants: bool = True
    """Several policies by turns."""
    vocabulary: bool = True
    """Of the whole vocabulary: entropies, a step's KL, and what users' words change."""
    settings: Mapping[str, tuple[tuple[object, ...], str]] = field(default_factory=dict)
    """Setting of ``[trainer]`` → the values that it may have, the usual one first, and why no others."""


def check_capabilities(config: Config, has: Capabilities) -> None:
    """Raises ``ConfigError`` that names each setting which asks for more than this learner does, and its fix."""
    t, (_, tenants) = config.trainer, known_tenants(config)
    found = [
        f"trainer.{name} = {value!r}: {why}: set trainer.{name} = {values[0]!r}"
        for name, (values, why) in has.settings.items()
        if (value := getattr(t, name)) not in values
    ]
    if not has.tenants and (tenants or config.tenant):
        one = config.tenant or min(tenants)
        found.append(f"tenants.{one}: it trains one policy: remove the tenants, or set trainer.backend = 'torch'")
    if found:
        raise ConfigError(f"trainer.backend = {t.backend!r} can't do it. {'. '.join(found)}")


class Learner(ABC):
    """Weights that learn, and their optimiser."""

    capabilities = Capabilities()
    config: Config
    """Of whose turn it is."""
    first: dict[str, torch.Tensor] = {}  # noqa: RUF012 - each sets its own
    """The reference's weights, of a learner that has them here."""
    device = torch.device("cpu")
    """Where the log-probabilities are."""
    dtype = torch.float32
    """Of what ``logprobs`` remembers."""
    hidden: int
    """The model's hidden size."""
    vocab: int
    """Ids below it are the model's."""

    @classmethod
    def start(cls, config: Config) -> Self:
        """As the settings say, of a learner elsewhere. Raises ``StartError`` and ``ConfigError``."""
        raise NotImplementedError

    # a batch

    def fault(self, sample: Sample) -> str | None:
        """Why this learner cannot train on it, or None. Takes from it what it can be trained on without."""
        return None

    @abstractmethod
    def plan(self, samples: Sequence[Sample]) -> Plan:
        """Laid out for this learner. Says of samples that do not fit why."""

    def prepare(self, plan: Plan) -> int:
        """Before its passes. → Layers that are computed again in the backward pass."""
        return 0

    @abstractmethod
    def logprobs(
        self,
        micro: MicroBatch,
        work: Work,
        places_P: torch.Tensor | None = None,
        old_PH: torch.Tensor | None = None,
        lesson: Lesson | None = None,
    ) -> Passed:
        """``places_P``: scored positions of which the policy is to be remembered; with ``old_PH``, compared with what
        was. ``lesson``: whose tokens are compared with their teacher.
        """

    @abstractmethod
    def backward(
        self, micro: MicroBatch, logprobs_S: torch.Tensor, slope_S: torch.Tensor, words: torch.Tensor | None = None
    ) -> None:
        """Add the gradient of a loss with these slopes at ``logprobs``' answer. ``words``: a part of the loss."""

    @abstractmethod
    def gathered(self, plan: Plan, seconds: float) -> None:
        """Behind the last micro-batch of a backward pass, which took so long."""

    def makes_room(self) -> bool:
        """After the memory did not do. True: it is worth another try."""
        return False

    def differs_without_gradients(self, plan: Plan) -> bool:
        """Whether a pass without gradients may compute in another order."""
        return False

    @abstractmethod
    def zero_grads(self) -> None:
        """Forget the gradient."""

    @abstractmethod
    def clip(self) -> float | None:
        """Clip the gradient. → Its norm before; None: only ``step`` knows it."""

    @abstractmethod
    def step(self, rate: float) -> float | None:
        """AdamW's, and forget the gradient. → Its norm, if ``clip`` did not know it."""

    # weights

    @abstractmethod
    def save(self, *, keep: bool = False) -> Snapshot:
        """Weights and optimiser as they are. ``keep``: for longer than this batch, and for ``adapter``."""

    @abstractmethod
    def restore(self, snapshot: Snapshot) -> None:
        """Settings of the optimiser stay those of this process."""

    @abstractmethod
    def resize(self, snapshot: Snapshot, factor: float) -> None:
        """Multiply the length of the step since then. The optimiser's state stays."""

    @abstractmethod
    def adopt(self, snapshot: Snapshot, scales: dict[str, float] | None, whose: str) -> bool:
        """``restore`` for a snapshot of another process. ``scales``: by what its B · A is multiplied, by module. →
        Whether it was of another LoRA: the policy is the same, and the optimiser starts afresh.

        Raises ``StartError`` for another model's, and ``ConfigError`` for what the settings have no place for; both
        before anything is changed.
        """

    @abstractmethod
    def scales(self) -> dict[str, float]:
        """By what B · A is multiplied, by the module's path in the base model."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Become the policy of an adapter's folder, with a fresh optimiser. Raises ``StartError``, ``ConfigError``."""

    @abstractmethod
    def distance(self, folder: Path) -> float:
        """How far the policy's changes of the base are from those of a folder, over the latter's size."""

    @abstractmethod
    def adapter(self, folder: Path, snapshot: Snapshot | None = None) -> None:
        """Write PEFT's files of a kept snapshot; None: of the weights as they are. Raises ``OSError``."""

    @property
    @abstractmethod
    def changes_base(self) -> bool:
        """Whether the policy is another than the base model."""

    # the policy that is held to

    @contextmanager
    @abstractmethod
    def reference(self) -> Iterator[None]:
        """The passes inside are those of the policy that training started from, or that was ``held`` to."""

    @abstractmethod
    def hold(self, start: Snapshot, folder: Path | None) -> None:
        """The reference becomes ``folder``'s policy; None: ``start``'s. Raises ``StartError`` and ``ConfigError``."""
