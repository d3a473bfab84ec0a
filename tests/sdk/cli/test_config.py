from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from slipstream.cli import main
from slipstream.config import Config, load_config


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["config", *args]) == 0
    return capsys.readouterr().out


SETTINGS = [
    "proxy.port=0", 'models."gpt-4.1 \\"x\\"*".trained=inbox', "models.o3.upstream=https://api.example.com/v1", "reward.weights={ judge = 1, \"a b\" = 0.5 }",
    "trainer.learning_rate=1e-7", 'engine.args=["--x", "ü😀"]', "judge.rubric='''two\nlines \u007f'''", "trainer.lora_targets=[\"q_proj\"]", "data_dir=C:\\temp",
]  # fmt: skip


@pytest.mark.parametrize("plain", [[], ["--plain"]])
def test_what_is_printed_loads_again_to_the_same(capsys: pytest.CaptureFixture[str], plain: list[str]) -> None:
    flags = [x for s in SETTINGS for x in ("--set", s)]
    Path("again.toml").write_text(printed(capsys, *plain, *flags))
    assert load_config("again.toml", env={}) == load_config(env={}, flags=SETTINGS)


def test_the_default_too(capsys: pytest.CaptureFixture[str]) -> None:
    Path("again.toml").write_text(printed(capsys))
    assert load_config("again.toml", env={}) == Config()


def test_each_field_with_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys)
    assert "# Port of the OpenAI-compatible API, control API and page; 0 picks one.\nport = 8100\n" in text
    assert "# model is not set" in text
    plain = printed(capsys, "--plain")
    assert "# Port of" not in plain
    assert tomllib.loads(plain) == tomllib.loads(text)


def test_the_effective_values(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("slipstream.toml").write_text("[proxy]\nport = 1\nworkers = 2\n[gate]\nmode = 'manual'\n")
    monkeypatch.setenv("SLIPSTREAM_PROXY__WORKERS", "3")
    tree = tomllib.loads(printed(capsys, "--set", "gate.mode=canary"))
    assert (tree["proxy"]["port"], tree["proxy"]["workers"], tree["gate"]["mode"]) == (1, 3, "canary")


def test_secrets_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--set", "engine.api_key=sk-1", "--set", "store.url=postgresql://me:hush@h/d")
    assert "sk-1" not in text
    assert "hush" not in text
    assert "# api_key is set, and secret" in text
    assert "# url is set, and secret" in text
    open_url = printed(capsys, "--set", "store.url=postgresql://h:5432/d@e")
    assert 'url = "postgresql://h:5432/d@e"' in open_url


def test_a_typo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--set", "gate.mod=manual"]) == 2
    assert (
        capsys.readouterr().err
        == "slipstream config: --set gate.mod: unknown setting gate.mod; did you mean gate.mode?\n"
    )
