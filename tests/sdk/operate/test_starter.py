"""What `init` writes can be read again, for every answer."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from slipstream.config import load_config
from slipstream.operate.setup.frameworks import BY_NAME
from slipstream.operate.setup.profiles import SETTING_PROFILES
from slipstream.operate.setup.starter import Answers, gpu_gib, model_for, next_steps, render


@pytest.mark.parametrize("profile", SETTING_PROFILES)
@pytest.mark.parametrize("judge", [None, "openai/gpt-5-mini"])
def test_what_is_written_is_a_configuration(tmp_path: Path, profile: str, judge: str | None) -> None:
    answers = Answers('a "model"', "m", "openai", judge, profile, 8123, share=True)
    text = render(answers)
    (tmp_path / "s.toml").write_text(text)
    config = load_config(tmp_path / "s.toml", env={})
    assert (config.engine.model, config.engine.name, config.proxy.port) == ('a "model"', "m", 8123)
    assert config.engine.share
    assert config.judge.model == judge
    assert set(config.reward.weights) == {"judge" if judge else "reward"}
    assert all(section in tomllib.loads(text) for section in ("engine", "proxy", "trainer"))
    assert text.count("\n#") >= 5


@pytest.mark.parametrize("name", BY_NAME)
def test_next_steps(name: str) -> None:
    text = "\n".join(next_steps(Answers("q", "q", name, None, "small", 8123)))
    assert "slipstream up" in text and "http://127.0.0.1:8123" in text
    assert "/slipstream/v1/episodes/RUN_ID/rewards" in text
    judged = "\n".join(next_steps(Answers("q", "q", name, "openai/x", "small", 8123)))
    assert "rewards" not in judged and "openai/x" in judged


def test_a_model_for_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [model_for(g) for g in (0, 8, 16, 24, 48, 141)] == [
        f"Qwen/Qwen3-{size}" for size in ("0.6B", "0.6B", "1.7B", "4B", "8B", "14B")
    ]
    monkeypatch.setattr("slipstream.operate.setup.starter.has_gpu", lambda: False)
    assert gpu_gib() == 0
    monkeypatch.setattr("slipstream.operate.setup.starter.has_gpu", lambda: True)
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 143771\necho 24564\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert round(gpu_gib()) == 140
    smi.write_text("#!/bin/sh\nexit 9\n")
    assert gpu_gib() == 0
