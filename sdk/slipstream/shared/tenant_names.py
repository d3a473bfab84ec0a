"""What a tenant may be called."""

from __future__ import annotations

import re

from slipstream.errors import ConfigError

TENANT_PATTERN = r"^[a-z0-9][a-z0-9-]{0,31}$"


def is_tenant_name(text: str) -> bool:
    return re.fullmatch(TENANT_PATTERN.removesuffix("$") + r"\Z", text) is not None


def check_tenant_name(name: str) -> None:
    """Raises ``ConfigError``."""
    if not is_tenant_name(name):
        raise ConfigError(f"{name!r} is no tenant's name: it has 1 to 32 of a-z, 0-9 and -, and begins with no -")
