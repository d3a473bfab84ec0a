"""What a tenant may be called."""

from __future__ import annotations

import re

from slipstream.errors import ConfigError

TENANTS_FOLDER_NAME = "tenants"
TENANT_PATTERN = r"^[a-z0-9][a-z0-9-]{0,31}$"
TENANT_NAME_RULE = "it has 1 to 32 of a-z, 0-9 and -, and begins with no -"
TENANT_PART = r"@[a-z0-9][a-z0-9-]{0,31}\."
"""Of the names that engines know tenants' adapters by."""
_TENANTS_NAME = re.compile(TENANT_PART)


def is_tenant_name(text: str) -> bool:
    return re.fullmatch(TENANT_PATTERN.removesuffix("$") + r"\Z", text) is not None


def check_tenant_name(name: str) -> None:
    """Raises ``ConfigError``."""
    if not is_tenant_name(name):
        raise ConfigError(f"{name!r} is no tenant's name: {TENANT_NAME_RULE}")


def engine_name(adapter: str, tenant: str) -> str:
    """What engines know a tenant's adapter by: ``model@7`` is ``model@acme.7`` there. Other names are those of all."""
    model, at, version = adapter.rpartition("@")
    return f"{model}@{tenant}.{version}" if tenant and at else adapter


def own_name(engines: str, tenant: str) -> str | None:
    """The adapter that an engine's name stands for; None: it is another tenant's."""
    model, at, version = engines.rpartition("@")
    if not at:
        return engines
    owner, dot, number = version.rpartition(".")
    return (f"{model}@{number}" if dot else engines) if owner == tenant else None


def names_tenant(name: str) -> bool:
    """Whether no client may ask for this name: engines know some tenant's adapter by it."""
    return _TENANTS_NAME.search(name) is not None
