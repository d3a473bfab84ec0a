"""`slipstream init`: asks on a terminal, else takes flags and what is detected."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from slipstream.cli import main
from slipstream.config import load_config


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.cli.start.init.gpu_gib", lambda: 0.0)
    monkeypatch.setattr("slipstream.cli.start.init.detect", lambda folder: "langgraph")


def test_without_a_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--yes"]) == 0
    out = capsys.readouterr().out
    assert "ChatOpenAI" in out and "slipstream up" in out
    config = load_config("slipstream.toml", env={})
    assert (config.engine.model, config.engine.name) == ("Qwen/Qwen3-0.6B", "Qwen3-0.6B")
    assert main(["init", "--yes"]) == 2
    assert "slipstream.toml already exists: --force overwrites it" in capsys.readouterr().err
    flags = ["--model", "./m", "--name", "mine", "--framework", "crewai", "--judge", "openai/x", "--profile", "chat"]
    assert main(["init", "--yes", "--force", "--json", *flags, "--port", "9000"]) == 0
    said = capsys.readouterr()
    assert "`slipstream connect crewai`; the old name goes with release" in said.err
    told = json.loads(said.out)
    assert (told["framework"], told["judge"], told["profile"]) == ("crewai", "openai/x", "chat")
    config = load_config("slipstream.toml", env={})
    assert (config.engine.model, config.model_name, config.proxy.port) == ("./m", "mine", 9000)
    assert config.reward.weights == {"judge": 1.0}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_questions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("\nnothing\njudge\n\nagents\n"))
    assert main(["init", "--out", "own.toml"]) == 0
    said = capsys.readouterr()
    assert "nothing: not one of them" in said.err
    assert "ChatOpenAI" in said.out and "slipstream connect NAME" in said.out
    config = load_config("own.toml", env={})
    assert config.judge.model == "openai/gpt-5-mini"
    assert config.trainer.lora_rank == 32
    assert Path("own.toml").read_text().startswith("# Written by `slipstream init`")


def test_a_place_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--yes", "--out", "no/such/folder.toml"]) == 2
    assert "no/such/folder.toml: No such file" in capsys.readouterr().err


def test_what_cannot_be_leaves_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--yes", "--out", "d.toml", "--port", "99999"]) == 2
    assert "proxy.port" in capsys.readouterr().err
    assert not Path("d.toml").exists()
    assert main(["init", "--yes", "--out", "d.toml", "--port", "9999"]) == 0


def test_a_file_of_another_name_is_what_up_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--yes", "--out", "my own.toml"]) == 0
    command = "slipstream up --config 'my own.toml'"
    assert command in capsys.readouterr().out
    assert command in Path("my own.toml").read_text().splitlines()[0]
    assert main(["--config", "b.toml", "init", "--yes"]) == 0
    assert "slipstream up --config b.toml" in capsys.readouterr().out and Path("b.toml").exists()


def test_a_judge_on_a_machine_without_a_gpu_gets_small_steps_and_the_profile_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.cli.start.init.gpu_gib", lambda: 0.0)
    assert main(["init", "--judge", "openai/x", "--yes"]) == 0
    said = capsys.readouterr().out
    assert "Profile small: " in said and "A step takes 4 groups, or fewer after 15 s" in said
    config = load_config("slipstream.toml", env={})
    assert (config.trainer.max_groups, config.reward.weights) == (8, {"judge": 1.0})
    monkeypatch.setattr("slipstream.cli.start.init.gpu_gib", lambda: 80.0)
    assert main(["init", "--judge", "openai/x", "--yes", "--force"]) == 0
    assert "Profile chat: " in (said := capsys.readouterr().out) and "8 groups, or fewer after 300 s" in said
