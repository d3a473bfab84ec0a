"""The whole configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, JsonValue, field_validator, model_validator

from slipstream.plugins import check_sections, used
from slipstream.settings.base import Section, rare
from slipstream.settings.engine import EngineConfig
from slipstream.settings.gate import GateConfig
from slipstream.settings.judge import JudgeConfig
from slipstream.settings.proxy import ModelRoute, ProxyConfig
from slipstream.settings.storage import AdaptersConfig, DataConfig, StoreConfig
from slipstream.settings.tenants import TENANTS_LIMIT, QuotaConfig, TenantConfig, TenantName
from slipstream.settings.traffic import EpisodesConfig, GroupsConfig, IdentityConfig, RewardConfig
from slipstream.settings.trainer import TrainerConfig


class Config(Section):
    data_dir: str = Field(
        "slipstream-data",
        description="Folder of spool, store, adapters, checkpoints; in a file it is relative to the file's folder.",
    )
    proxy: ProxyConfig = Field(default_factory=ProxyConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    models: dict[str, ModelRoute] = Field(default_factory=dict, description="Name pattern (glob) → what answers.")
    identity: IdentityConfig = Field(default_factory=IdentityConfig)
    episodes: EpisodesConfig = Field(default_factory=EpisodesConfig)
    groups: GroupsConfig = Field(default_factory=GroupsConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    store: StoreConfig = Field(default_factory=StoreConfig)
    adapters: AdaptersConfig = Field(default_factory=AdaptersConfig)
    gate: GateConfig = Field(default_factory=GateConfig)
    judge: JudgeConfig = Field(default_factory=JudgeConfig)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    quota: QuotaConfig = Field(default_factory=QuotaConfig)
    tenants: dict[TenantName, TenantConfig] = rare(
        default_factory=dict,
        description="Tenants: each learns for itself on the same engines (docs/tenants.md).",
        when="teams or customers share a proxy, and none may see or train another's",
    )
    tenant: str = rare("", description="Whose settings these are. Slipstream sets it.", when="you never do")
    share: bool = rare(False, description="Whether that tenant has the common start.", when="you never do")
    plugins: dict[str, dict[str, JsonValue]] = rare(
        default_factory=dict,
        description="Plug-in → its settings; enabled = false turns it off.",
        when="a plug-in is installed",
    )

    @field_validator("plugins")
    @classmethod
    def _known_plugins(cls, sections: dict[str, dict[str, JsonValue]]) -> dict[str, dict[str, JsonValue]]:
        check_sections(sections)
        return sections

    @field_validator("tenants")
    @classmethod
    def _few_tenants(cls, tenants: dict[str, TenantConfig]) -> dict[str, TenantConfig]:
        if len(tenants) > TENANTS_LIMIT:
            raise ValueError(
                f"{len(tenants):,} tenants are more than {TENANTS_LIMIT}, each of which is a process: declare those "
                "that call now, or run several proxies"
            )
        return tenants

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.trainer.lora_rank > self.engine.max_lora_rank:
            raise ValueError(
                f"trainer.lora_rank {self.trainer.lora_rank} is above engine.max_lora_rank "
                f"{self.engine.max_lora_rank}: vLLM would refuse"
            )
        if self.trainer.min_groups > self.trainer.max_groups:
            raise ValueError("trainer.min_groups is above trainer.max_groups")
        if self.gate.group_verdict == "group" and self.proxy.redact and self.gate.by != ["task"]:
            raise ValueError(
                'gate.group_verdict "group" finds a run\'s group by its tags as they were sent, and proxy.redact may '
                'store others: set gate.by = ["task"], or another gate.group_verdict'
            )
        wanted = {"replay": 'gate.mode "replay"'} if self.gate.mode == "replay" else {}
        for pattern, route in self.models.items():
            if route.explore == "siblings":
                wanted["siblings"] = f'models."{pattern}".explore "siblings"'
        for plugin in sorted(wanted.keys() - {plugin.name for plugin in used(self.plugins)}):
            raise ValueError(f"{wanted[plugin]} is done by the plug-in {plugin}, which is not installed or turned off")
        if self.judge.model is None and (name := next((n for n, r in self.models.items() if r.feedback), None)):
            raise ValueError(f'models."{name}".feedback: a judge finds corrections, set judge.model')
        if self.judge.calls and (self.judge.model is None or self.reward.credit != "call"):
            raise ValueError('judge.calls: set judge.model and reward.credit = "call", or leave it out')
        return self

    @model_validator(mode="after")
    def _a_judge_counts(self) -> Self:
        """Its scores train if nothing else is said."""
        if self.judge.names and "weights" not in self.reward.model_fields_set:
            self.reward = self.reward.model_copy(update={"weights": {self.judge.names[0]: 1.0}})
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
    def home(self) -> Path:
        """The proxy's own folder: that in which all tenants have theirs."""
        return self.root.parent.parent if self.tenant else self.root

    @property
    def keys_file(self) -> Path:
        """One for all tenants."""
        return self.home / "keys.json"

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
