"""Every setting, documented where it stands: ``slipstream config`` prints the effective values with these words."""

from slipstream.settings.base import Section
from slipstream.settings.config import Config
from slipstream.settings.engine import EngineConfig
from slipstream.settings.gate import GateConfig
from slipstream.settings.judge import JudgeConfig
from slipstream.settings.proxy import ModelRoute, ProxyConfig
from slipstream.settings.storage import AdaptersConfig, DataConfig, StoreConfig
from slipstream.settings.traffic import EpisodesConfig, GroupsConfig, IdentityConfig, RewardConfig
from slipstream.settings.trainer import TrainerConfig

__all__ = [
    "AdaptersConfig",
    "Config",
    "DataConfig",
    "EngineConfig",
    "EpisodesConfig",
    "GateConfig",
    "GroupsConfig",
    "IdentityConfig",
    "JudgeConfig",
    "ModelRoute",
    "ProxyConfig",
    "RewardConfig",
    "Section",
    "StoreConfig",
    "TrainerConfig",
]
