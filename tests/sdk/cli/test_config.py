from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel

from slipstream.cli import main
from slipstream.config import DELETED_SETTINGS, Config, load_config
from slipstream.operate.setup.profiles import SETTING_PROFILES
from slipstream.operate.setup.starter import Answers, settings_of
from slipstream.settings import TrainerConfig
from slipstream.settings.base import when_needed


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


MOST_OF_THE_FIRST_LEVEL = 40


def leaves(tree: dict[str, object], path: str = "") -> set[str]:
    found: set[str] = set()
    for name, value in tree.items():
        found |= leaves(value, f"{path}{name}.") if isinstance(value, dict) and value else {f"{path}{name}"}
    return found


def told(text: str) -> set[str]:
    """Names of all settings in what is printed, those that are not set among them."""
    return leaves(tomllib.loads(re.sub(r"(?m)^# (\w+) is not set$", r"\1 = 0", text)))


def first_level(model: type[BaseModel] = Config, path: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found |= first_level(kind, f"{path}{name}.")
        elif when_needed(field) is None:
            found.add(f"{path}{name}")
    return found


def test_the_first_level_fits_in_a_head(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys)
    shown = {name.replace("weights.reward", "weights") for name in told(text)}
    assert shown == first_level() and len(shown) <= MOST_OF_THE_FIRST_LEVEL
    assert max(map(len, text.splitlines())) <= 80
    everything = told(printed(capsys, "--all"))
    assert (
        f"# {len(everything) - len(shown) - 2} rarely used settings are at their defaults" in text
    )  # gate.guards are three
    assert len(everything) > 120


def test_each_of_the_others_says_who_needs_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(printed(capsys, "--all").replace("\n# ", " ").split())
    assert "You need it if agents use top-k" not in text  # of an entry in [models]: there is none
    fields = [f for f in TrainerConfig.model_fields.values() if when_needed(f)]
    assert len(fields) > 30 and all(f"You need it if {when_needed(f)}. " in text for f in fields)


def test_what_is_set_shows_at_any_level(capsys: pytest.CaptureFixture[str]) -> None:
    assert "settle" not in printed(capsys)
    text = printed(capsys, "--set", "gate.settle=20", "--set", "models.m.explore=siblings")
    assert "settle = 20" in text and 'explore = "siblings"' in text and "explore_share" not in text


@pytest.mark.parametrize("profile", SETTING_PROFILES)
def test_what_init_writes_is_of_the_first_level(profile: str) -> None:
    answers = Answers("m", "m", "openai", "openai/x", profile, share=True)
    written = {name for section, part in settings_of(answers).items() for name in (f"{section}.{n}" for n in part)}
    assert written <= first_level()


@pytest.mark.parametrize("place", DELETED_SETTINGS)
def test_a_deleted_setting_is_left_out_and_said_once(
    place: tuple[str, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.config._said", set())
    section, name = place
    Path("old.toml").write_text(f"[{section}]\n{name} = 8\n")
    assert load_config("old.toml", env={}) == Config() == load_config("old.toml", env={})
    (line,) = [r.getMessage() for r in caplog.records]
    assert line == f"old.toml: {section}.{name} is no setting any more, and is left out: {DELETED_SETTINGS[place]}"
    assert load_config(env={f"SLIPSTREAM_{section}__{name}".upper(): "8"}) == Config()
    assert "environment SLIPSTREAM_" in caplog.records[-1].getMessage()


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
