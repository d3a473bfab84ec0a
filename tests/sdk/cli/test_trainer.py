from __future__ import annotations

import sys

import pytest

from slipstream.cli import main
from slipstream.cli.trainer import torchrun


def test_without_a_model_there_is_nothing_to_train(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trainer"]) == 2
    assert (
        capsys.readouterr().err == "slipstream trainer: no model: give --model, or trainer.model in the configuration\n"
    )


def test_several_processes_run_the_same_command() -> None:
    argv = torchrun(2, "http://h:1")
    assert argv[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert "--nproc-per-node=2" in argv
    assert argv[-5:] == ["-m", "slipstream.cli", "trainer", "--url", "http://h:1"]
    assert torchrun(2, None)[-1] == "trainer"


def test_a_wrong_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trainer", "--model", "x", "--set", "trainer.lora_rank=64"]) == 2
    assert "above engine.max_lora_rank 16" in capsys.readouterr().err
