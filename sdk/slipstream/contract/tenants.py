"""Tenants as their operator sees them."""

from __future__ import annotations

from pydantic import Field

from slipstream.contract.base import Model
from slipstream.contract.status import AdapterUse


class TenantStatus(Model):
    name: str
    running: bool
    """Whether its control plane answers."""
    reason: str | None = None
    """Why not."""
    calls: int = 0
    episodes: int = 0
    live: dict[str, str] = Field(default_factory=dict)
    """Trained model → what is live."""
    quota: dict[str, float] = Field(default_factory=dict)
    used: dict[str, float] = Field(default_factory=dict)
    """Of each quota that it has, what was used today (UTC), as far as calls are stored."""
    adapter_use: AdapterUse = Field(default_factory=AdapterUse)
    trouble: str | None = None
    """The worst of what somebody should change."""


class TenantList(Model):
    """``GET tenants``: whom the proxy serves beside itself."""

    tenants: list[TenantStatus] = Field(default_factory=list)
