"""The three common cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.cli import main
from slipstream.config import Config, load_config
from slipstream.errors import ConfigError
from slipstream.operate.setup.profiles import SETTING_PROFILES, profile_settings


@pytest.mark.parametrize("name", SETTING_PROFILES)
def test_each_is_a_configuration_that_differs_from_the_default(name: str) -> None:
    config = load_config(env={}, base=profile_settings(name))
    assert config != Config()
    for section, values in SETTING_PROFILES[name].settings.items():
        assert isinstance(values, dict)
        for key, value in values.items():
            assert getattr(getattr(config, section), key) == value


def test_one_that_there_is_not() -> None:
    assert profile_settings(None) is None
    with pytest.raises(ConfigError, match="--profile big: there are small, chat, agents"):
        profile_settings("big")


def test_file_and_flags_count_above_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--plain", "--profile", "agents"]) == 0
    assert "lora_rank = 32\n" in capsys.readouterr().out
    Path("slipstream.toml").write_text("[trainer]\nlora_rank = 8\n")
    assert main(["config", "--plain", "--profile", "agents", "--set", "trainer.max_wait=7"]) == 0
    out = capsys.readouterr().out
    assert "lora_rank = 8\n" in out and "max_wait = 7.0\n" in out and "token_budget = 32768\n" in out


def test_a_profile_is_not_changed_by_its_use() -> None:
    first = profile_settings("agents")
    assert first is not None
    first.clear()
    assert profile_settings("agents")
