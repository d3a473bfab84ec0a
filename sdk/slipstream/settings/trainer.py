"""The trainer: algorithm, pace, guards, and how it uses the machine."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from slipstream.settings.base import Positive, Section, known, rare

LOSS_FUNCTIONS: Final[Mapping[str, str]] = {
    "cispo": "slipstream_trainer.algorithm.losses:CISPO_LOSS",
    "grpo": "slipstream_trainer.algorithm.losses:GRPO_LOSS",
    "bnpo": "slipstream_trainer.algorithm.losses:BNPO_LOSS",
    "dapo": "slipstream_trainer.algorithm.losses:DAPO_LOSS",
    "dr_grpo": "slipstream_trainer.algorithm.losses:DR_GRPO",
    "gspo": "slipstream_trainer.algorithm.losses:GSPO_LOSS",
    "sapo": "slipstream_trainer.algorithm.losses:SAPO_LOSS",
}
ADVANTAGE_FUNCTIONS: Final[Mapping[str, str]] = {
    "std": "slipstream_trainer.algorithm.advantage:by_std",
    "mean": "slipstream_trainer.algorithm.advantage:by_mean",
    "leave_one_out": "slipstream_trainer.algorithm.advantage:by_others",
}
BACKEND_CLASSES: Final[Mapping[str, str]] = {
    "torch": "slipstream_trainer.model.torch_learner:TorchLearner",
    "tinker": "slipstream_tinker.learner:TinkerLearner",
}
"""Name → where it is. A setting takes a name, or the place of something of one's own."""


_SPAN = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


def midnight(now: float, days: int) -> float:
    """When the day began, or begins so many days after it, by this machine's clock: in seconds since the epoch."""
    day = time.localtime(now)
    return time.mktime((day.tm_year, day.tm_mon, day.tm_mday + days, 0, 0, 0, 0, 0, -1))


class ScheduleConfig(Section):
    hours: str | None = rare(
        None,
        description='Hours in which the trainer takes batches, by the clock of the proxy\'s machine: "22:00-06:00", or '
        "several with commas; None: at all hours.",
        when="training should wait for certain hours",
    )
    idle: Positive | None = rare(
        None,
        description="Seconds without a call in the engine before the trainer takes a batch; None: it does not wait.",
        when="training should wait until nobody calls",
    )
    minutes: Positive | None = rare(
        None,
        description="Minutes of training a day, from midnight by that clock; None: no limit.",
        when="training may take only part of a day",
    )

    @field_validator("hours")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        if value is None:
            return value
        if (wrong := next((s.strip() for s in value.split(",") if not _SPAN.fullmatch(s.strip())), None)) is not None:
            raise ValueError(
                f'{wrong!r}: write hours as "22:00-06:00", several with commas; leave it out for all hours'
            )
        return value

    @property
    def is_set(self) -> bool:
        return any(value is not None for value in (self.hours, self.idle, self.minutes))

    def opens(self, now: float) -> float:
        """``now``, if it lies within the hours; else when they begin next. Seconds since the epoch."""
        if self.hours is None:
            return now
        spans = [(60 * int(a) + int(b), 60 * int(c) + int(d)) for a, b, c, d in _SPAN.findall(self.hours)]
        # minute by minute: where the clock is put forward or back, a day has times that are missing or come twice
        times = (now - now % 60 + 60 * n if n else now for n in range(SCHEDULE_SEARCH_MINUTES))
        return next(at for at in times if _within(spans, at))


SCHEDULE_SEARCH_MINUTES = 3 * 24 * 60
"""Minutes within which hours begin again, also where a day of changed clocks does not have them."""


def _within(spans: Sequence[tuple[int, int]], now: float) -> bool:
    """Whether the clock shows a time within one of these. From and to: minutes of the day."""
    local = time.localtime(now)
    at = 60 * local.tm_hour + local.tm_min
    return any(a <= at < b if a < b else at >= a or at < b for a, b in spans)


class TrainerConfig(Section):
    enabled: bool = Field(True, description="`up` starts a trainer.")
    model: str | None = rare(
        None,
        description="Folder or hub name of the base weights; None: engine.model.",
        when="the engine serves another form of the weights, or runs elsewhere",
    )
    python: str | None = rare(
        None,
        description="Python of the environment in which `up` starts the trainer, such as one with "
        "slipstream[unsloth]; None: that of `up`.",
        when="the trainer needs other packages than the proxy",
    )
    backend: Annotated[str, known(BACKEND_CLASSES, "module:Class")] = rare(
        "torch",
        description="What computes the steps: torch, in this process; tinker, a service (experimental); or your own "
        "`Learner` as module:Class.",
        when="another engine should compute the steps",
    )
    algorithm: Literal["grpo", "sft"] = rare(
        "grpo",
        description="sft: imitate the chosen episodes (warm start, distillation).",
        when="you start from good runs instead of rewards",
    )
    loss: Annotated[str, known(LOSS_FUNCTIONS)] = rare(
        "cispo",
        description=f"The loss: {', '.join(LOSS_FUNCTIONS)} (TRL's), or your own as module:function.",
        when="you compare algorithms",
    )
    epsilon: Positive = rare(
        0.2,
        description="Lower clip: a ratio counts down to 1 - this. cispo has none.",
        when="you compare algorithms that clip",
    )
    epsilon_high: Positive | None = rare(
        None,
        description="Upper clip: a ratio counts up to 1 + this; None: 4.0 for cispo, epsilon for the others.",
        when="you compare algorithms that clip",
    )
    beta: Annotated[float, Field(ge=0)] = rare(
        0.02,
        description="KL weight to what training started from: init_adapter, else the base model. 0: none.",
        when="the model drifts from where it began, or is held back",
    )
    beta_share: Annotated[float, Field(gt=0, le=1)] = rare(
        0.0625,
        description="Share of a batch's micro-batches that `beta` is computed on, for all; 1: on every one.",
        when="the pull of `beta` is too noisy",
    )
    advantage: Annotated[str, known(ADVANTAGE_FUNCTIONS)] = rare(
        "std",
        description=(
            f"How a group's rewards become advantages: {', '.join(ADVANTAGE_FUNCTIONS)}, or your "
            "own as module:function."
        ),
        when="you compare algorithms",
    )
    words_weight: Annotated[float, Field(ge=0)] = rare(
        1.0,
        description="How much a user's words about a reply count beside rewards; 0: not at all.",
        when="users' words about replies should count more, less or not at all",
    )
    words_kl: Positive = rare(
        3.0,
        description="A user's words about a reply do not count if what the model wants with them is further than this "
        "from what it does without (KL, nats a token): they are an order, or words that it cannot follow.",
        when="users' words are left out that should count",
    )
    learning_rate: Positive | Literal["auto"] = Field(
        "auto",
        description=(
            "AdamW's. auto: begins by hidden size and lora_alpha, then follows the KL of each step; a number stays."
        ),
    )
    target_kl: Positive = rare(
        0.01,
        description="KL of a full step, nats a token, that an automatic learning rate aims at.",
        when="steps are too careful or too wild",
    )
    warmup_steps: int = rare(0, ge=0, description="Steps of linear warm-up.", when="the learning rate is a number")
    weight_decay: Annotated[float, Field(ge=0)] = rare(
        0.0, description="AdamW's weight decay.", when="the learning rate is a number and runs are long"
    )
    max_grad_norm: Positive = rare(
        1.0, description="Gradient clipping.", when="you reproduce another trainer's settings"
    )
    inner_steps: int = rare(
        1,
        ge=1,
        description="Optimiser steps on one batch.",
        when="batches are so rare that each should be used more than once",
    )
    min_groups: int = Field(
        4, ge=1, description="Scored groups that a step needs. Those whose rewards are all equal do not count."
    )
    max_groups: int = Field(
        16, ge=1, description="The most groups that one step uses. Those whose rewards are all equal do not count."
    )
    max_wait: Annotated[float, Field(ge=0)] = Field(
        30.0, description="Seconds after which fewer groups are enough for a step."
    )
    max_staleness: int = rare(
        4,
        ge=0,
        description="How many versions behind the live one a run may be and still train.",
        when="runs are longer than four steps take",
    )
    is_max: Positive = rare(
        2.0, description="Cap of a token's weight π_old / π_engine.", when="engine and trainer disagree on many tokens"
    )
    lora_rank: int = Field(16, description="At most engine.max_lora_rank.")
    lora_alpha: Positive = Field(32.0, description="LoRA's scale is alpha / rank.")
    lora_targets: list[str] | Literal["all-linear"] = rare(
        "all-linear", description="Module names to adapt.", when="only some layers should be adapted"
    )
    rslora: bool = rare(False, description="Scale alpha / sqrt(rank).", when="ranks are large")
    quantize: Literal["none", "4bit"] = rare(
        "none", description="4bit: QLoRA.", when="the base weights do not fit the GPU"
    )
    mode: Literal["auto", "merged", "tree", "frugal"] = rare(
        "auto", description="How a batch is laid out.", when="you look for a fault in how batches are laid out"
    )
    token_budget: int = Field(16_384, ge=64, description="Tokens computed in one micro-batch.")
    checkpointing: Literal["auto", "on", "off"] = rare(
        "auto",
        description="Gradient checkpointing; auto: as few layers as memory allows.",
        when="memory runs out, or is left over",
    )
    compile: bool = rare(
        True,
        description="On a GPU: compile layers (mode tree), and capture a small model's passes as CUDA graphs.",
        when="compiling fails or takes too long",
    )
    tenants_gb: Positive = rare(
        8.0,
        description="Host memory (GB) in which weights and optimisers of tenants wait for their turn; the rest waits "
        "on disk.",
        when="there are many tenants",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = rare(
        "auto",
        description="Number format of the base weights; auto: bf16 on GPU, fp32 on CPU.",
        when="the GPU lacks bfloat16, or a CPU's memory is short",
    )
    sharding: Literal["ddp", "fsdp2"] = rare(
        "ddp",
        description="Several processes: each has the whole base (ddp), or a part of it (fsdp2).",
        when="the base weights do not fit one GPU",
    )
    threads: int | None = rare(
        None,
        ge=1,
        description="Torch threads; None: 1 beside an engine on a CPU, else torch's choice.",
        when="engine and trainer share a CPU",
    )
    seed: int = rare(
        0,
        description="Seed of LoRA's first weights and of all random choices.",
        when="you repeat a run with another seed",
    )
    init_adapter: str | None = rare(
        None,
        description="Folder of an adapter to start from.",
        when="training should begin at an adapter that you have",
    )
    report_to: list[str] = rare(
        default_factory=list,
        description="wandb, tensorboard, mlflow: TRL's report_to.",
        when="you watch curves in W&B, TensorBoard or MLflow",
    )
    max_kl: Positive = rare(
        0.1,
        description="A step is undone if its KL to the adapter before (nats a token, on its batch) is above.",
        when="steps are undone that should stand, or stand that should not",
    )
    max_ratio: Positive = rare(
        4.0,
        description=(
            "A call whose mean π_old / π_engine (geometric) lies outside 1/this … this does not count, and a batch is "
            "skipped if most tokens are of such calls, or the mean of the others (arithmetic) lies outside."
        ),
        when="batches are skipped because engine and trainer disagree",
    )
    max_engine_kl: Positive = rare(
        1.0,
        description=(
            "A batch is not stepped on if its KL of the engine's to the trainer's policy (nats a token, without calls "
            "that max_ratio leaves out) is above."
        ),
        when="batches are skipped because engine and trainer disagree",
    )
    keep_checkpoints: int = rare(
        3,
        ge=1,
        description="Newest checkpoints kept. Those that a rollback may need stay as well.",
        when="the disk is short",
    )
    metrics_port: int | None = rare(
        None,
        ge=0,
        le=65535,
        description="Prometheus port of the trainer; None: off.",
        when="Prometheus reads the trainer itself",
    )
    metrics_host: str = rare(
        "127.0.0.1",
        description="Address that the trainer's Prometheus port is bound to.",
        when="Prometheus is on another machine",
    )
    max_steps: int | None = rare(
        None, ge=1, description="Steps after which the trainer ends; None: never.", when="training should end by itself"
    )
    schedule: ScheduleConfig = Field(
        ScheduleConfig(), description='When the trainer works. A text is its hours: schedule = "22:00-06:00".'
    )

    @field_validator("schedule", mode="before")
    @classmethod
    def _hours(cls, value: object) -> object:
        return {"hours": value} if isinstance(value, str) else value
