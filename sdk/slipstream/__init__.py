"""Slipstream: your agent's own traffic trains its next version."""

from slipstream.client import AsyncClient, Client
from slipstream.config import Config, load_config
from slipstream.episode import episode
from slipstream.errors import ApiError, ConfigError, SlipstreamError, StartError, Unavailable

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
