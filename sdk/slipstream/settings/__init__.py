"""Every setting, documented where it stands: ``slipstream config`` prints the effective values with these words."""

from slipstream.settings.base import Section as Section
from slipstream.settings.config import Config as Config
from slipstream.settings.engine import EngineConfig as EngineConfig
from slipstream.settings.gate import GateConfig as GateConfig
from slipstream.settings.judge import JudgeConfig as JudgeConfig
from slipstream.settings.proxy import ModelRoute as ModelRoute
from slipstream.settings.proxy import ProxyConfig as ProxyConfig
from slipstream.settings.storage import AdaptersConfig as AdaptersConfig
from slipstream.settings.storage import DataConfig as DataConfig
from slipstream.settings.storage import StoreConfig as StoreConfig
from slipstream.settings.tenants import QuotaConfig as QuotaConfig
from slipstream.settings.tenants import TenantConfig as TenantConfig
from slipstream.settings.traffic import EpisodesConfig as EpisodesConfig
from slipstream.settings.traffic import GroupsConfig as GroupsConfig
from slipstream.settings.traffic import IdentityConfig as IdentityConfig
from slipstream.settings.traffic import RewardConfig as RewardConfig
from slipstream.settings.trainer import TrainerConfig as TrainerConfig
