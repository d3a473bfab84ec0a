"""vLLM imports itself once for a start, and does as before where that cannot be."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slipstream_vllm import forks


def vllms_own(fn: Callable[[], object]) -> object:
    return "as before"


run = forks.forked(vllms_own)


def test_a_fork_does_it() -> None:
    here = os.getpid()
    assert run(lambda: (os.getppid(), os.getpid() != here, "x" * 200_000)) == (here, True, "x" * 200_000)


def test_a_fork_that_fails_leaves_it_to_vllm(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: 1 / 0) == "as before"
    assert run(lambda: os._exit(0)) == "as before"
    assert run(lambda: lambda: "no pickle") == "as before"


def test_a_fork_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "FORK_TIMEOUT_S", 0.1)
    began = time.monotonic()
    assert run(lambda: time.sleep(30)) == "as before"
    assert time.monotonic() - began < 10


def test_no_process_where_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert run(os.getpid) == os.getpid()
    assert run(lambda: 1 / 0) == "as before"


def test_it_says_when_it_has_its_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there, frozen = tmp_path / "engine.settled", gc.get_freeze_count()
    worker: Any = type("Worker", (), {"compile_or_warm_up_model": lambda self: (there.exists(), gc.get_freeze_count())})
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu_worker", SimpleNamespace(Worker=worker))
    forks.warm_up_sooner()
    try:
        monkeypatch.delenv("SLIPSTREAM_ENGINE_SETTLED", raising=False)
        told, cold = worker().compile_or_warm_up_model()
        assert not told and cold > frozen, "nobody asks"
        monkeypatch.setenv("SLIPSTREAM_ENGINE_SETTLED", str(there))
        assert worker().compile_or_warm_up_model()[0], "before it warms up"
    finally:
        gc.unfreeze()


@pytest.mark.slow
def test_vllm_gets_the_same_answer() -> None:
    registry = pytest.importorskip("vllm.model_executor.models.registry")
    look = registry.ModelRegistry.models["Qwen3ForCausalLM"]
    before = registry._run_in_subprocess
    try:
        forks.install()
        assert registry._run_in_subprocess is not before
        found = registry._run_in_subprocess(lambda: registry._ModelInfo.from_model_cls(look.load_model_cls()))
    finally:
        registry._run_in_subprocess = before
    assert found.architecture == "Qwen3ForCausalLM"
    assert found.is_text_generation_model


@pytest.mark.parametrize(
    ("said", "asked", "given"),
    [("fork", "spawn", "fork"), ("spawn", "spawn", "spawn"), ("fork", "forkserver", "forkserver")],
)
def test_api_servers_are_started_as_the_engine_is(
    said: str, asked: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", said)
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    assert forks.Starting().get_context(asked).get_start_method() == given
    assert forks.Starting().Pipe == multiprocessing.Pipe
