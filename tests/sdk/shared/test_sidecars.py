"""What `up` writes of its sidecars, and what the control plane reads."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from slipstream.contract import Sidecar
from slipstream.shared.processes.sidecars import (
    RECENT_SECONDS,
    SIDECARS_FILE_NAME,
    SidecarFile,
    read_stack,
    sentence,
    sidecar_of,
    starts_again,
)
from slipstream.shared.processes.supervisor import Child, ChildState


def child(name: str, **more: object) -> Child:
    return Child(name, ["x"], essential=False, **more)  # type: ignore[arg-type]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    trainer = child("trainer", state=ChildState.DOWN, starts=10, exit_code=2, since=5.0)
    trainer.tail.extend(["loading", "StartError: no checkpoint", "bye"])
    report = SidecarFile(tmp_path / "data")  # the folder need not be there
    report([Child("engine", ["x"]), trainer, child("judge")])
    found = read_stack(tmp_path / "data").sidecars
    assert [s.name for s in found] == ["trainer", "judge"]
    assert found[0] == Sidecar(
        name="trainer",
        state="down",
        since=5.0,
        starts=10,
        exit_code=2,
        reason="ended with exit code 2: StartError: no checkpoint",
    )
    assert found[1].state == "running" and found[1].reason is None
    report.remove()
    report.remove()
    assert read_stack(tmp_path / "data").sidecars == []


def test_the_file_of_a_run_that_was_killed_counts_for_nothing(tmp_path: Path) -> None:
    SidecarFile(tmp_path)([child("judge")])
    dead = subprocess.Popen(["true"])
    dead.wait()
    told = json.loads((tmp_path / SIDECARS_FILE_NAME).read_text())
    assert told["pid"] == os.getpid()
    (tmp_path / SIDECARS_FILE_NAME).write_text(json.dumps({**told, "pid": dead.pid}))
    assert read_stack(tmp_path).sidecars == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "sidecars": []}'])
def test_a_file_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / SIDECARS_FILE_NAME).write_text(text)
    assert read_stack(tmp_path).sidecars == []


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    SidecarFile(tmp_path / "file")([child("judge")])


def test_the_engine_before_it_answers_and_when_it_is_started_again(tmp_path: Path) -> None:
    report = SidecarFile(tmp_path)
    engine = Child("engine", ["x"], slow_start=True, answers=False, starts=1, since=100.0)
    report([engine, child("judge")])
    found = read_stack(tmp_path).engine
    assert found and found.sentence(142.0) == "the engine is starting (42 s so far); that takes a minute or more"
    engine.answers = True
    report([engine])
    assert (found := read_stack(tmp_path).engine) and found.sentence(142.0) is None
    engine.state, engine.exit_code = ChildState.RESTARTING, 0
    engine.tail.append("EngineDeadError: gone")
    report([engine])
    assert (found := read_stack(tmp_path).engine) and found.sentence(103.0) == (
        "the engine ended with exit code 0; its last error: EngineDeadError: gone, and `slipstream up` is starting it again "
        "(3 s so far)"
    )
    engine.state, engine.starts, engine.answers = ChildState.RUNNING, 2, False
    report([engine])
    assert (found := read_stack(tmp_path).engine) and "is starting it again" in (found.sentence(103.0) or "")
    engine.answers, engine.last_end = True, "ended with exit code 1: OutOfMemoryError: CUDA out of memory"
    report([engine])
    assert (found := read_stack(tmp_path).engine) and found.sentence(103.0) is None
    assert found.ended(103.0) == (
        "the engine was started again: it ended with exit code 1: OutOfMemoryError: CUDA out of memory"
    )
    assert found.ended(100.0 + 2 * RECENT_SECONDS) is None
    report([child("judge")])
    assert read_stack(tmp_path).engine is None


def test_sentences() -> None:
    assert sentence(Sidecar(name="judge", state="running", since=0)) is None
    assert sentence(Sidecar(name="judge", state="ended", since=0, exit_code=0)) is None
    again = sentence(Sidecar(name="judge", state="restarting", since=0, exit_code=1, reason="ended with exit code 1"))
    assert again == "the judge ended with exit code 1, and is restarted"
    down = sentence(Sidecar(name="judge", state="down", since=0, starts=10, exit_code=1, reason="OSError: x"))
    assert down is not None and down.startswith("the judge is down after 10 starts")


def test_a_trainer_that_fails_again_and_again_says_why_while_it_loads() -> None:
    """Between two failures its process runs, and all that could be said was that it asks for no work."""
    failed = sidecar_of(
        child(
            "trainer",
            starts=3,
            since=100.0,
            last_end="ended with exit code 1: ValueError: Target modules {'x'} not found",
        )
    )
    assert failed.state == "running"
    said = starts_again(failed, silence=50.0, now=120.0)
    assert said is not None
    assert "started again (start 3): before, it" in said
    assert "trainer.lora_targets" in said
    assert starts_again(failed, silence=10.0, now=120.0) is None, "it has asked for work since"
    assert starts_again(sidecar_of(child("trainer", since=100.0)), silence=50.0, now=120.0) is None
