"""Every setting, documented where it stands: ``slipstream config`` prints the effective values with these words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=(), allow_inf_nan=False)


class Proxy(Section):
    host: str = Field("127.0.0.1", description="Address to bind. Anything but loopback needs keys.")
    port: int = Field(
        8100, ge=0, le=65535, description="Port of the OpenAI-compatible API, control API and page; 0 picks one."
    )
    workers: int = Field(1, ge=1, le=64, description="Data-plane processes on the one port.")
    durability: Literal["power", "process", "none"] = Field(
        "power",
        description="A reply ends once its call is: on the disk (power), handed to the OS (process), or at once (none).",
    )
    drain_timeout: Positive = Field(30.0, description="Seconds that running streams get after SIGTERM.")
    body_limit: int = Field(32 * 2**20, ge=1024, description="Largest request body in bytes; more is a 413.")
    header_limit: int = Field(32 * 1024, ge=1024, description="Largest request head in bytes; more is a 431.")
    header_timeout: Positive = Field(
        30.0, description="Seconds in which a request's head and body must have begun to arrive whole."
    )
    client_timeout: Positive = Field(
        120.0,
        description="Seconds without a byte taken by a client that has some to read, after which its call is aborted.",
    )
    upstream_timeout: Positive = Field(
        600.0, description="Seconds without a byte from the engine after which a call fails (504)."
    )
    connect_timeout: Positive = Field(5.0, description="Seconds to connect to an engine.")
    segment_bytes: int = Field(64 * 2**20, ge=4096, description="Spool segment size at which a new one is begun.")
    redact: str | None = Field(
        None,
        description="module:function(record: dict) -> dict, run before a call is stored: its request, reply and tag.NAME, each a str.",
    )
    metric_tags: list[str] | None = Field(
        None,
        description="Tags that calls are counted by in the metrics (20 values each); None: the first four names seen.",
    )
    allowed_hosts: list[str] = Field(
        default_factory=list,
        description="Names beside this machine's own that may stand in Host and Origin when no keys are set.",
    )


class Engine(Section):
    urls: list[str] = Field(
        default_factory=list, description="vLLM servers that already run; empty: `slipstream up` starts one."
    )
    model: str | None = Field(None, description="Folder or hub name of the base model that `up` serves.")
    name: str | None = Field(
        None, description="Name under which the base model is served; default: its last path part."
    )
    api_key: str | None = Field(None, description="Key sent to the engine. Clients' keys never go upstream.")
    host: str = Field("127.0.0.1", description="Where `up` binds vLLM.")
    port: int = Field(0, ge=0, le=65535, description="Port of the vLLM that `up` starts; 0 picks one.")
    max_loras: int = Field(4, ge=2, description="Adapters that vLLM computes with at once.")
    max_lora_rank: int = Field(16, ge=1, description="Largest rank that vLLM takes.")
    max_model_len: int | None = Field(None, ge=16, description="Context length; None: the model's own.")
    dtype: str = Field("auto", description="vLLM's dtype.")
    gpu_memory: Share | None = Field(
        None, description="Share of the GPU's memory for vLLM; None: 0.9, or 0.45 beside a trainer."
    )
    tool_parser: str | None = Field(None, description="vLLM tool-call parser; None: by the model's family.")
    reasoning_parser: str | None = Field(None, description="vLLM reasoning parser; None: by the model's family.")
    share: bool = Field(False, description="One GPU for engine and trainer: vLLM sleeps while the trainer steps.")
    adapters_dir: str | None = Field(
        None, description="Where vLLM sees adapters.dir, if it is mounted elsewhere there."
    )
    own_responses: bool = Field(
        False,
        description="Responses go to the engine's own route, without ids: for one that keeps them (VLLM_ENABLE_RESPONSES_API_STORE=1) or serves gpt-oss.",
    )
    args: list[str] = Field(default_factory=list, description="More vLLM flags.")
    start_timeout: Positive = Field(900.0, description="Seconds until a starting engine must answer.")
    health_interval: Positive = Field(2.0, description="Seconds between health checks.")


class ModelRoute(Section):
    """What a client's model name stands for. Exactly one of ``trained``, ``base``, ``upstream``."""

    trained: str | None = Field(None, description="A trained model's name: the live adapter answers.")
    base: str | None = Field(None, description="The base model, without adapter.")
    upstream: str | None = Field(
        None, description="Base URL of an external OpenAI-compatible API; recorded as text only."
    )
    model: str | None = Field(None, description="Model name sent to the upstream; default: the client's.")
    api_key_env: str | None = Field(None, description="Environment variable with the upstream's key.")
    sampling: Literal["strict", "trust"] = Field(
        "strict", description="trust: top-k, penalties and so on do not make a call untrainable."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(x is not None for x in (self.trained, self.base, self.upstream)) != 1:
            raise ValueError("name exactly one of trained, base, upstream")
        return self


class Identity(Section):
    traceparent: bool = Field(False, description="Take the episode from W3C traceparent when nothing else says it.")
    continue_window: Positive = Field(
        1800.0, description="Seconds in which an untagged call may continue a conversation."
    )


class Episodes(Section):
    idle_timeout: Positive = Field(900.0, description="Seconds without a call after which an episode is done.")


class Groups(Section):
    size: int = Field(8, ge=2, description="Episodes at which a group is complete.")
    max_age: Positive = Field(
        3600.0, description="Seconds after which a group with two or more episodes is complete anyway."
    )
    ungrouped: bool = Field(True, description="Untagged episodes form groups of likeness with a batch-level baseline.")


class RewardConfig(Section):
    weights: dict[str, float] = Field(
        default_factory=lambda: {"reward": 1.0}, description="What trains: reward name → weight."
    )
    credit: Literal["episode", "call"] = Field(
        "episode", description="call: a call's own reward counts for that call alone."
    )
    orphan_ttl: Positive = Field(3600.0, description="Seconds that a reward waits for its episode's first call.")


class Store(Section):
    url: str | None = Field(None, description="duckdb:///path or postgresql://…; None: slipstream.duckdb in data_dir.")
    keep_days: int | None = Field(None, ge=1, description="Days to keep calls; None: for ever.")
    archive: str | None = Field(None, description="Folder for Parquet of days before they are dropped.")
    memory_limit: str = Field("1GB", description="DuckDB's memory limit.")
    threads: int = Field(1, ge=1, description="DuckDB's threads.")
    sql_timeout: Positive = Field(10.0, description="Seconds for a query of `slipstream sql`.")


class AdaptersConfig(Section):
    dir: str | None = Field(None, description="Folder of adapters; None: adapters in data_dir.")
    patience: Positive = Field(60.0, description="Seconds until an adapter that the engine answers 5xx for is refused.")
    keep: int = Field(20, ge=1, description="Retired adapters whose files are kept.")


class Gate(Section):
    mode: Literal["guard", "canary", "manual"] = Field("guard", description="How a new adapter goes live.")
    holdout: Share = Field(0.1, description="guard: share of new episodes on the last accepted adapter.")
    share: Share = Field(0.1, description="canary: share of new episodes on the candidate.")
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = Field(0.05, description="Error level of the anytime-valid test.")
    min_pairs: int = Field(8, ge=1, description="Matched tasks before the test may decide.")
    max_episodes: int = Field(2000, ge=1, description="Candidate episodes after which it is accepted undecided.")


class Judge(Section):
    model: str | None = Field(None, description="LiteLLM model; None: no judge.")
    api_base: str | None = Field(None, description="Base URL of the judge's API.")
    api_key_env: str | None = Field(None, description="Environment variable with the judge's key.")
    function: str | None = Field(None, description="module:function(group) -> {episode: score} in place of the LLM.")
    rubric: str | None = Field(None, description="The rubric's text, or a path to a file with it.")
    rubrics: dict[str, str] = Field(default_factory=dict, description="Task pattern (glob) → rubric text or path.")
    name: str = Field("judge", description="Reward name that the scores are stored under.")
    votes: int = Field(1, ge=1, le=32, description="Calls per group, each in another order.")
    concurrency: int = Field(8, ge=1, description="Groups judged at once.")
    temperature: float | None = Field(0.0, ge=0, description="None: not sent.")
    max_tokens: int | None = Field(None, ge=16, description="Limit of the judge's answer.")
    context: int = Field(32_000, ge=512, description="Tokens of transcript that one judge call may hold.")
    timeout: Positive = Field(120.0, description="Seconds for one judge call.")
    max_attempts: int = Field(4, ge=1, description="Failures after which a group is parked.")
    singles: Literal["off", "window", "absolute"] = Field("window", description="How ungrouped episodes are scored.")
    window: int = Field(7, ge=1, le=63, description="Alike episodes shown beside a single one.")
    calls_per_minute: int | None = Field(None, ge=1, description="Budget.")
    tokens_per_day: int | None = Field(None, ge=1, description="Budget.")
    dollars_per_day: float | None = Field(None, gt=0, description="Budget.")
    audit_share: Share = Field(0.0, description="Share of groups that audit_model judges too.")
    audit_model: str | None = Field(None, description="The second judge.")
    metrics_port: int | None = Field(None, ge=0, le=65535, description="Prometheus port of the judge; None: off.")
    metrics_host: str = Field("127.0.0.1", description="Address that the judge's Prometheus port is bound to.")


class Trainer(Section):
    enabled: bool = Field(True, description="`up` starts a trainer.")
    model: str | None = Field(None, description="Folder or hub name of the base weights; None: engine.model.")
    algorithm: Literal["grpo", "sft"] = Field(
        "grpo", description="sft: imitate the chosen episodes (warm start, distillation)."
    )
    loss: Literal["cispo", "grpo", "bnpo", "dapo", "dr_grpo", "gspo", "sapo"] = Field(
        "cispo", description="TRL's names."
    )
    epsilon: Positive = Field(0.2, description="Lower clip.")
    epsilon_high: Positive | None = Field(None, description="Upper clip; None: 5.0 for cispo, epsilon for the others.")
    beta: Annotated[float, Field(ge=0)] = Field(0.0, description="KL weight to the base model (adapter off).")
    advantage: Literal["std", "mean", "leave_one_out"] = Field(
        "std", description="How a group's rewards become advantages."
    )
    learning_rate: Positive = Field(2e-5, description="AdamW's, constant after warm-up.")
    warmup_steps: int = Field(0, ge=0, description="Steps of linear warm-up.")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="AdamW's.")
    max_grad_norm: Positive = Field(1.0, description="Gradient clipping.")
    inner_steps: int = Field(1, ge=1, description="Optimiser steps on one batch.")
    min_groups: int = Field(8, ge=1, description="Scored groups that make a step.")
    max_groups: int = Field(16, ge=1, description="Most groups of one step.")
    max_wait: Annotated[float, Field(ge=0)] = Field(120.0, description="Seconds after which fewer groups are enough.")
    max_staleness: int = Field(4, ge=0, description="Versions behind the live one that are still trained on.")
    is_max: Positive = Field(2.0, description="Cap of a token's weight π_old / π_engine.")
    lora_rank: int = Field(16, description="1, 8, 16, 32, 64, 128, 256 or 320, and at most engine.max_lora_rank.")
    lora_alpha: Positive = Field(32.0, description="LoRA's scale is alpha / rank.")
    lora_targets: list[str] | Literal["all-linear"] = Field("all-linear", description="Module names to adapt.")
    rslora: bool = Field(False, description="Scale alpha / sqrt(rank).")
    quantize: Literal["none", "4bit"] = Field("none", description="4bit: QLoRA.")
    mode: Literal["auto", "merged", "tree", "frugal"] = Field("auto", description="How a batch is laid out.")
    token_budget: int = Field(16_384, ge=64, description="Tokens computed in one micro-batch.")
    checkpointing: Literal["auto", "on", "off"] = Field(
        "auto", description="Gradient checkpointing; auto: of as few layers as the memory asks for."
    )
    compile: bool = Field(True, description="Compile the model's layers (GPU, mode tree).")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Of the base weights; auto: bf16 on GPU, fp32 on CPU."
    )
    sharding: Literal["ddp", "fsdp2"] = Field(
        "ddp", description="Several processes: each has the whole base (ddp), or a part of it (fsdp2)."
    )
    threads: int | None = Field(None, ge=1, description="Torch threads; None: torch's choice.")
    seed: int = Field(0, description="Of LoRA's start and everything random.")
    init_adapter: str | None = Field(None, description="Folder of an adapter to start from.")
    report_to: list[str] = Field(default_factory=list, description="wandb, tensorboard, mlflow: TRL's report_to.")
    max_kl: Positive = Field(
        0.1, description="A step whose KL to the adapter before (nats a token, on its batch) is above is undone."
    )
    max_ratio: Positive = Field(
        4.0, description="A batch whose mean π_old / π_engine lies outside 1/this … this is not stepped on."
    )
    max_engine_kl: Positive = Field(
        1.0,
        description="A batch whose KL of the engine's to the trainer's policy (nats a token) is above is not stepped on.",
    )
    max_grad: Positive = Field(1000.0, description="A batch whose gradient norm is above is not stepped on.")
    min_entropy: Annotated[float, Field(ge=0)] = Field(
        0.0, description="A step after which mean entropy is below is undone."
    )
    keep_checkpoints: int = Field(3, ge=1, description="Checkpoints kept.")
    metrics_port: int | None = Field(None, ge=0, le=65535, description="Prometheus port of the trainer; None: off.")
    metrics_host: str = Field("127.0.0.1", description="Address that the trainer's Prometheus port is bound to.")
    max_steps: int | None = Field(None, ge=1, description="Steps after which the trainer ends; None: never.")


class Config(Section):
    data_dir: str = Field("slipstream-data", description="Folder of spool, store, adapters, checkpoints.")
    proxy: Proxy = Field(default_factory=Proxy)
    engine: Engine = Field(default_factory=Engine)
    models: dict[str, ModelRoute] = Field(default_factory=dict, description="Name pattern (glob) → what answers.")
    identity: Identity = Field(default_factory=Identity)
    episodes: Episodes = Field(default_factory=Episodes)
    groups: Groups = Field(default_factory=Groups)
    reward: RewardConfig = Field(default_factory=RewardConfig)
    store: Store = Field(default_factory=Store)
    adapters: AdaptersConfig = Field(default_factory=AdaptersConfig)
    gate: Gate = Field(default_factory=Gate)
    judge: Judge = Field(default_factory=Judge)
    trainer: Trainer = Field(default_factory=Trainer)

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.trainer.lora_rank > self.engine.max_lora_rank:
            raise ValueError(
                f"trainer.lora_rank {self.trainer.lora_rank} is above engine.max_lora_rank {self.engine.max_lora_rank}: vLLM would refuse"
            )
        if self.trainer.min_groups > self.trainer.max_groups:
            raise ValueError("trainer.min_groups is above trainer.max_groups")
        return self

    @property
    def root(self) -> Path:
        return Path(self.data_dir).expanduser().resolve()

    @property
    def spool_dir(self) -> Path:
        return self.root / "spool"

    @property
    def adapters_dir(self) -> Path:
        return Path(self.adapters.dir).expanduser().resolve() if self.adapters.dir else self.root / "adapters"

    @property
    def checkpoints_dir(self) -> Path:
        return self.root / "checkpoints"

    @property
    def socket(self) -> Path:
        """The control plane's Unix socket."""
        return self.root / "control.sock"

    @property
    def keys_file(self) -> Path:
        return self.root / "keys.json"

    @property
    def store_url(self) -> str:
        return self.store.url or f"duckdb:///{self.root / 'slipstream.duckdb'}"

    @property
    def model_name(self) -> str:
        """Name of the trained model (and of the base model in the engine)."""
        if self.engine.name or not self.engine.model:
            return self.engine.name or "default"
        path = Path(self.engine.model).expanduser()
        return (path.resolve() if path.is_dir() else path).name or "default"
