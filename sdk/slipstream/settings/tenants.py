"""Tenants: who shares a proxy's port, its engines and the base model, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, JsonValue, StringConstraints, model_validator

from slipstream.settings.base import Positive, Section, rare
from slipstream.shared.tenant_names import TENANT_PATTERN

TenantName = Annotated[str, StringConstraints(pattern=TENANT_PATTERN)]
TENANTS_LIMIT = 512
"""Tenants of one proxy: each has a process of its own."""
TENANT_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "proxy": ("redact",),
    "store": ("keep_days", "forget", "sql_timeout"),
    "trainer": (
        *("learning_rate", "target_kl", "warmup_steps", "min_groups", "max_groups", "max_wait", "max_staleness"),
        *("max_kl", "max_ratio", "max_engine_kl", "keep_checkpoints", "max_steps", "schedule"),
    ),
}
"""Section of which a tenant may have some settings of its own → those."""
SHARED_SETTINGS: Mapping[str, tuple[str, ...]] = {"judge": ("metrics_port", "metrics_host", "concurrency")}
"""What is one for all in a section that is a tenant's else."""


NEEDED_IF = "what may be used has a limit"


def _quota(what: str) -> Any:
    return rare(None, ge=1, description=f"{what} None: no limit.", when=NEEDED_IF)


class QuotaConfig(Section):
    """What may be used in a day (UTC) or at once. Above it calls get 429; training and judging rest until midnight."""

    calls_per_day: int | None = _quota("Calls a day.")
    input_tokens_per_day: int | None = _quota("Tokens of prompts a day.")
    output_tokens_per_day: int | None = _quota("Sampled tokens a day.")
    trained_tokens_per_day: int | None = _quota("Tokens trained on a day.")
    judge_dollars_per_day: Positive | None = rare(None, description="The judge's dollars a day.", when=NEEDED_IF)
    adapters: int | None = _quota("Retired versions whose files are kept.")
    concurrency: int | None = _quota("Calls at once.")

    @property
    def counts_calls(self) -> bool:
        """Whether calls have to be counted."""
        daily = (self.calls_per_day, self.input_tokens_per_day, self.output_tokens_per_day)
        return any(limit is not None for limit in (*daily, self.concurrency))


def _own(section: str) -> Any:
    some = TENANT_SETTINGS.get(section)
    what = f"its own {', '.join(some)}" if some else f"its own settings of [{section}]"
    return rare(
        default_factory=dict,
        description=f"{what[0].upper()}{what[1:]}; the others are those of all.",
        when=f"a tenant needs another {section} than the others",
    )


class TenantConfig(Section):
    """A tenant. An empty table declares it."""

    quota: QuotaConfig = Field(default_factory=QuotaConfig)
    share: bool = rare(
        False,
        description="Give what was learned to the common start of all tenants that share, and begin from it.",
        when="tenants have tasks in common, and agree to learn from each other",
    )
    proxy: dict[str, JsonValue] = _own("proxy")
    identity: dict[str, JsonValue] = _own("identity")
    episodes: dict[str, JsonValue] = _own("episodes")
    groups: dict[str, JsonValue] = _own("groups")
    reward: dict[str, JsonValue] = _own("reward")
    data: dict[str, JsonValue] = _own("data")
    store: dict[str, JsonValue] = _own("store")
    gate: dict[str, JsonValue] = _own("gate")
    judge: dict[str, JsonValue] = _own("judge")
    trainer: dict[str, JsonValue] = _own("trainer")

    @model_validator(mode="before")
    @classmethod
    def _not_shared(cls, tree: object) -> object:
        for section, part in tree.items() if isinstance(tree, dict) else ():
            if section not in cls.model_fields:
                raise ValueError(_shared(section))
            some = TENANT_SETTINGS.get(section)
            for name in part if isinstance(part, dict) and section != "quota" else ():
                if name in SHARED_SETTINGS.get(section, ()) or (some and name not in some):
                    raise ValueError(_shared(f"{section}.{name}"))
        return tree


def _shared(name: str) -> str:
    own = ", ".join(n for n in TenantConfig.model_fields if n not in TENANT_SETTINGS)
    some = ", ".join(f"{section}.{name}" for section, names in TENANT_SETTINGS.items() for name in names)
    return f"{name} is the same for all tenants: set it outside of [tenants]. A tenant may have its own {own}, {some}"
