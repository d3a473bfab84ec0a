"""Settings for three common cases: ``slipstream up --profile NAME``.

A file, the environment and flags count above them.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

from pydantic import JsonValue

from slipstream.errors import ConfigError

Tree = dict[str, JsonValue]


class Profile(NamedTuple):
    text: str
    settings: Tree


SETTING_PROFILES = {
    "small": Profile(
        "a model below 2B on a CPU or a small GPU, runs of a few calls: small batches and quick steps",
        {
            "engine": {"args": ["--max-num-seqs", "64"]},
            "trainer": {"min_groups": 4, "max_groups": 8, "max_wait": 15.0, "token_budget": 8192, "lora_rank": 16},
        },
    ),
    "chat": Profile(
        "people who chat: no two conversations are alike, nobody posts a reward, a judge scores (set judge.model)",
        {
            "identity": {"continue_window": 7200.0},
            "reward": {"weights": {"judge": 1.0}},
            "trainer": {"min_groups": 8, "max_groups": 32, "max_wait": 300.0},
        },
    ),
    "agents": Profile(
        "agents with tools: long runs of many calls, tasks that come again, rewards from your own checks",
        {
            "proxy": {"upstream_timeout": 1200.0},
            "identity": {"traceparent": True, "continue_window": 3600.0},
            "engine": {"max_lora_rank": 32},
            "trainer": {
                "lora_rank": 32,
                "lora_alpha": 64.0,
                "min_groups": 4,
                "max_wait": 120.0,
                "token_budget": 32_768,
            },
        },
    ),
}


def profile_settings(name: str | None) -> Tree | None:
    """The settings below the file's. None: no profile. Raises ``ConfigError`` for one that there is not."""
    if name is None:
        return None
    if name not in SETTING_PROFILES:
        raise ConfigError(f"--profile {name}: there are {', '.join(SETTING_PROFILES)}")
    return copy.deepcopy(SETTING_PROFILES[name].settings)
