from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from slipstream.cli import build_parser, main
from slipstream.cli.start.trainer import torchrun, wait_for_room, waited_for
from slipstream.shared.processes.proxy_file import SETTLED_FILE, announce_proxy


def test_without_a_model_there_is_nothing_to_train(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trainer"]) == 2
    assert (
        capsys.readouterr().err == "slipstream trainer: no model: give --model, or trainer.model in the configuration\n"
    )


@pytest.mark.parametrize(
    ("said", "last"), [(["--url", "http://h:1"], ["--url", "http://h:1"]), (["--wait"], ["--wait"])]
)
def test_several_processes_run_the_same_command(said: list[str], last: list[str]) -> None:
    argv = torchrun(build_parser("trainer").parse_args(["trainer", "--processes", "2", *said]))
    assert argv[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert "--nproc-per-node=2" in argv and "--max-restarts=3" in argv, "one that dies ends no training"
    assert argv[-3 - len(last) :] == ["-m", "slipstream.cli", "trainer", *last]


def test_it_waits_for_the_proxy_of_its_data_folder(tmp_path: Path) -> None:
    announced = threading.Timer(0.1, announce_proxy, (tmp_path, "http://h:1"))
    announced.start()
    assert waited_for(tmp_path) == "http://h:1"


def test_it_loads_its_model_once_the_engine_has_its_memory_or_a_proxy_runs(tmp_path: Path) -> None:
    announce_proxy(tmp_path, "http://h:1")
    waiting = threading.Thread(target=wait_for_room, args=(tmp_path,), kwargs={"proxy": False}, daemon=True)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive(), "`up` starts the proxy beside the engine, which may not have its memory yet"
    (tmp_path / SETTLED_FILE).touch()
    waiting.join(5)
    assert not waiting.is_alive()
    (tmp_path / SETTLED_FILE).unlink()
    wait_for_room(tmp_path, proxy=True)


def test_a_wrong_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trainer", "--model", "x", "--set", "trainer.lora_rank=64"]) == 2
    assert "above engine.max_lora_rank 16" in capsys.readouterr().err
