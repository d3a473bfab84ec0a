"""The table that several API servers share: one number a name, alike in each process, gone with its engine."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from slipstream_vllm.adapters import (
    SharedAdapters,
    SharedCounter,
    StateFile,
    response_fields,
    sampling,
    serving_routes,
    sharing,
    started_at,
    state_file,
)


@dataclass
class Request:
    lora_name: str
    lora_int_id: int
    lora_path: str
    base_model_name: str | None = None


def table(path: Path) -> SharedAdapters:
    return SharedAdapters(StateFile(path), Request)


def test_what_one_server_loads_the_other_knows_at_once(tmp_path: Path) -> None:
    one, other = table(tmp_path / "s"), table(tmp_path / "s")
    assert "m@1" not in other
    one["m@1"] = Request("m@1", 1, "/a", "base")
    assert other["m@1"] == Request("m@1", 1, "/a", "base")
    assert list(other) == ["m@1"]
    assert len(other) == 1
    del other["m@1"]
    assert "m@1" not in one
    assert one.get("m@1") is None


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    adapters = table(tmp_path / "s")
    adapters["m@1"] = Request("m@1", 1, "/a")
    assert adapters["m@1"] is adapters["m@1"]


def test_a_name_that_another_server_loaded_meanwhile_is_refused(tmp_path: Path) -> None:
    one, other = table(tmp_path / "s"), table(tmp_path / "s")
    one["m@1"] = Request("m@1", 1, "/a")
    with pytest.raises(ValueError, match="by another API server"):
        other["m@1"] = Request("m@1", 2, "/b")
    assert one["m@1"].lora_path == "/a"


def _take(path: Path, count: int, out: "multiprocessing.Queue[list[int]]") -> None:
    counter = SharedCounter(StateFile(path))
    out.put([counter.inc(1) for _ in range(count)])


def test_no_two_processes_get_one_number(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    processes = [context.Process(target=_take, args=(tmp_path / "s", 50, out)) for _ in range(3)]
    for p in processes:
        p.start()
    taken = [n for _ in processes for n in out.get(timeout=60)]
    for p in processes:
        p.join()
    assert sorted(taken) == list(range(1, 151))


def test_a_change_that_fails_writes_nothing(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "s")
    with pytest.raises(RuntimeError), file.change() as state:
        state["next"] = 99
        raise RuntimeError
    assert SharedCounter(file).inc(1) == 1


def test_writings_within_one_tick_of_the_clock_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still, and a file system that gives a freed inode to the next file."""
    real, first = os.stat, tmp_path.stat()
    monkeypatch.setattr(os, "stat", lambda path, **more: first if "s" in Path(path).name else real(path, **more))
    one, other = SharedCounter(StateFile(tmp_path / "s")), SharedCounter(StateFile(tmp_path / "s"))
    assert [one.inc(1), other.inc(1), other.inc(1), one.inc(1)] == [1, 2, 3, 4]


def test_numbers_go_on_where_the_file_was_cleaned_away(tmp_path: Path) -> None:
    one, other = table(tmp_path / "s"), table(tmp_path / "s")
    one["m@1"] = Request("m@1", SharedCounter(StateFile(tmp_path / "s")).inc(1), "/a")
    assert other["m@1"].lora_int_id == 1
    (tmp_path / "s").unlink()
    other["m@2"] = Request("m@2", 2, "/b")
    assert list(one) == ["m@1", "m@2"]


def test_the_file_is_named_after_the_process_that_started_the_servers() -> None:
    parent = os.getppid()
    assert state_file().name == f"adapters-{parent}-{started_at(parent)}.json"
    assert state_file().parent.stat().st_mode & 0o077 == 0
    assert started_at(parent).isdigit()


class Config:
    def __init__(self, count: int) -> None:
        self.vllm_config = self
        self.parallel_config = self
        self._api_process_count = count


class Models:
    lora_requests: object = {}


@pytest.mark.parametrize(("asked", "servers", "shared"), [("1", 2, True), ("1", 1, False), ("0", 4, False)])
def test_only_several_servers_that_ask_share(
    asked: str, servers: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm")
    monkeypatch.setenv("SLIPSTREAM_ENGINE_ADAPTERS", asked)
    models = Models()
    sharing(lambda self, client: None)(models, Config(servers))
    assert isinstance(models.lora_requests, SharedAdapters) is shared


@pytest.mark.parametrize(("asked", "expected"), [("1", True), ("0", False), ("", False)])
def test_routes_are_attached_only_where_asked(asked: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_ENGINE_ADAPTERS", asked)
    before = SimpleNamespace(VLLM_ALLOW_RUNTIME_LORA_UPDATING=False)
    routes = ModuleType("routes")
    routes.envs = before  # type: ignore[attr-defined]
    attached = []
    routes.attach_router = lambda _: attached.append(routes.envs.VLLM_ALLOW_RUNTIME_LORA_UPDATING)  # type: ignore[attr-defined]
    app = FastAPI()
    serving_routes(routes)(app)
    assert attached == [expected]
    assert routes.envs is before
    assert TestClient(app).get("/slipstream").json() == {"packed": 1, "device": "cpu", "responses": response_fields()}


def test_what_a_call_is_sampled_with_that_leaves_it_open() -> None:
    chat = SimpleNamespace(
        default_sampling_params={"temperature": 0.7, "top_k": 20, "max_tokens": 9},
        model_config=SimpleNamespace(logprobs_mode="processed_logprobs"),
    )
    told = sampling(chat)
    neutral = {"top_p": 1.0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
    assert told == {
        "sampling": {"temperature": 0.7, "top_k": 20.0, **neutral},
        "logprobs_mode": "processed_logprobs",
    }
    assert sampling(None) == {}
