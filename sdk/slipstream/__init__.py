"""Slipstream: your agent's own traffic trains its next version."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from slipstream.errors import ApiError, ConfigError, SlipstreamError, StartError, Unavailable

if TYPE_CHECKING:
    from slipstream.client import AsyncClient, Client
    from slipstream.config import Config, load_config
    from slipstream.run import episode

__version__ = "0.1.0"
__all__ = [
    "ApiError",
    "AsyncClient",
    "Client",
    "Config",
    "ConfigError",
    "SlipstreamError",
    "StartError",
    "Unavailable",
    "episode",
    "load_config",
]
MODULE_OF_NAME = {
    "AsyncClient": "client",
    "Client": "client",
    "Config": "config",
    "episode": "run",
    "load_config": "config",
}
"""What is imported when it is first asked for: the proxy's processes need no client."""


def __getattr__(name: str) -> Any:
    if name not in MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{MODULE_OF_NAME[name]}"), name)
    return found
