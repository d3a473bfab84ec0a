from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support import free_port
from tests.support.server import Server

from slipstream.config import load_config
from slipstream.engines.vllm.parsers import choose_parsers
from slipstream.errors import StartError
from slipstream.operate.doctor.doctor import check_configured
from slipstream.operate.doctor.ports import Running
from slipstream.shared.hub import fetch_description, model_config, model_folder, trouble_of_hub


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``org/some-qwen3`` as huggingface_hub keeps it."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "models--org--some-qwen3"
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc\n")
    (snapshot / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (snapshot / "tokenizer_config.json").write_text("{}")
    return snapshot


def test_a_hub_model_in_the_cache_is_found_without_the_hub(cached: Path) -> None:
    assert model_folder("org/some-qwen3") == cached
    assert model_config("org/some-qwen3") == {"model_type": "qwen3"}
    assert model_folder("org/another") is None
    with pytest.raises(StartError, match="not in the hub's cache"):
        model_config("org/another")


@pytest.mark.parametrize(("template", "reasoning"), [("{{ tools }} <think>", "qwen3"), ("{{ tools }}", None)])
def test_the_parsers_of_a_hub_name_follow_its_own_template(cached: Path, template: str, reasoning: str | None) -> None:
    """An instruct model whose template never thinks gets no reasoning parser, which would hide its answers."""
    (cached / "chat_template.jinja").write_text(f"{template} <tool_call> <function=")
    config = load_config(None, env={}, flags=["engine.model=org/some-qwen3"])
    found = choose_parsers(config, model_config("org/some-qwen3"))
    assert (found.tool, found.reasoning) == ("qwen3_xml", reasoning)


def test_a_hub_model_in_mistral_s_own_form_is_known_by_its_small_files(cached: Path) -> None:
    """VLLM asks the hub for the names of its weights, which are not here yet."""
    (cached / "chat_template.jinja").write_text("{{ tools }}")
    (cached / "tekken.json").write_text('{"config": {"version": "v13"}}')
    config = load_config(None, env={}, flags=["engine.model=org/some-qwen3"])
    assert not choose_parsers(config, {}).tekken
    (cached / "params.json").touch()
    found = choose_parsers(config, {})
    assert (found.tekken, found.grammar) == (True, True)


def test_a_hub_model_s_small_files_are_fetched_before_its_parsers_are_chosen(
    cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def download(model: str, **how: object) -> None:
        asked.append(how["allow_patterns"])
        if model == "org/gone":
            raise OSError("404 Client Error")
        (cached.parents[2] / "models--org--some-qwen3").rename(
            cached.parents[2] / f"models--{model.replace('/', '--')}"
        )

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert fetch_description("org/new") is None, "HF_HUB_OFFLINE=1"
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert fetch_description("org/some-qwen3") == cached
    assert fetch_description("./folder") is None
    assert not asked
    found = fetch_description("org/new")
    assert found is not None
    assert (found / "config.json").is_file()
    assert not any("safetensors" in str(pattern) for pattern in asked)
    assert fetch_description("org/gone") is None


def test_what_keeps_a_model_from_coming_is_told(cached: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    assert trouble_of_hub("org/new") is None, "HF_HUB_OFFLINE=1"
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert [trouble_of_hub(name) for name in ("org/some-qwen3", str(cached), "no-name")] == [None] * 3
    assert "does not answer" in str(trouble_of_hub("org/new"))
    config = load_config(None, env={}, flags=["engine.model=org/new"])
    (said, *_) = check_configured(config, Running())
    assert (said.level, said.why) == ("warn", "`slipstream up` can't fetch the model") and "not here" in said.what
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    for status, words in {404: "no such model", 401: "a login", 403: "may read"}.items():
        server.on("GET", "/org/new/resolve/main/config.json", {}, status=status)
        assert f"{status}: " in (trouble := str(trouble_of_hub("org/new"))) and words in trouble
    server.on("GET", "/org/new/resolve/main/config.json", {})
    assert trouble_of_hub("org/new") is None
    assert server.seen[-1].headers["authorization"] == "Bearer hf_x"
    assert next(iter(check_configured(config, Running()))).what == "engine.model org/new (from a hub)"
