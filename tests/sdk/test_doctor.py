"""Each finding with its fix, against an engine and a proxy that say what they say."""

from __future__ import annotations

import socket
from email.utils import formatdate
from pathlib import Path

import pytest
from tests.sdk.server import Reply, Server
from tests.support import free_port

from slipstream.config import Config, load_config
from slipstream.doctor import (
    Finding,
    as_json,
    check_disk,
    check_engine,
    check_judge,
    check_port,
    check_proxy,
    check_store,
    check_trainer,
    examine,
)  # fmt: skip

MODELS = {"object": "list", "data": [{"id": "inbox"}]}
CHOICE = {
    "message": {"role": "assistant", "content": "x"}, "token_ids": [1, 2],
    "logprobs": {"content": [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -0.2}]},
}  # fmt: skip
NO_ADAPTER = {
    "error": {
        "message": "Loading lora slipstream-doctor failed: No adapter found for /nonexistent/slipstream-doctor",
        "code": 404,
    }
}


def config(*flags: str) -> Config:
    return load_config(env={}, flags=["engine.name=inbox", *flags])


def engine(server: Server, **changed: Reply) -> Config:
    """An engine as vLLM is, with some answers changed."""
    answers = {
        "models": Reply(MODELS), "lora": Reply(NO_ADAPTER, 404), "chat": Reply({"choices": [CHOICE]}),
    } | changed  # fmt: skip
    server.routes["GET", "/v1/models"] = answers["models"]
    server.routes["POST", "/v1/load_lora_adapter"] = answers["lora"]
    server.routes["POST", "/v1/chat/completions"] = answers["chat"]
    return config(f'engine.urls=["{server.url}"]')


def levels(findings: list[Finding]) -> list[str]:
    assert all(f.fix for f in findings if f.level != "ok"), findings
    return [f.level for f in findings]


def test_a_good_engine(server: Server) -> None:
    found = list(check_engine(server.url, engine(server)))
    assert [f.what for f in found] == [
        f"engine {server.url} serves inbox",
        "the engine takes adapters at run time",
        "token ids and log-probabilities come back",
    ]
    assert levels(found) == ["ok", "ok", "ok"]
    asked = server.asked("POST", "/v1/chat/completions")[0].json
    assert asked["return_token_ids"]
    assert asked["logprobs"]
    assert asked["model"] == "inbox"


@pytest.mark.parametrize(
    ("changed", "what", "fix"),
    [
        ({"lora": Reply({"detail": "Not Found"}, 404)}, "takes no adapters at run time", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        ({"lora": Reply({"error": {"message": "Method Not Allowed"}}, 405)}, "takes no adapters", "VLLM_ALLOW_RUNTIME"),
        ({"lora": Reply({"error": {"message": "LoRA is not enabled. Use --enable-lora"}}, 500)}, "LoRA is off", "--enable-lora"),
        ({"lora": Reply({"error": "unauthorized"}, 401)}, "refuses the key", "engine.api_key"),
        ({"chat": Reply({"choices": [CHOICE | {"token_ids": None}]})}, "no token ids", "return_token_ids"),
        ({"chat": Reply({"choices": [CHOICE | {"logprobs": None}]})}, "no log-probabilities", "--max-logprobs"),
        ({"chat": Reply({"error": {"message": "no chat template"}}, 400)}, "a chat completion failed", "chat template"),
        ({"chat": Reply({"choices": []})}, "a chat completion failed", "chat template"),
        ({"models": Reply({"data": [{"id": "other"}]})}, "serves no model inbox", "one of: other"),
        ({"models": Reply({"error": "unauthorized"}, 401)}, "refuses the key", "engine.api_key"),
        ({"models": Reply(b"<html>")}, "does not answer", "engine.urls"),
        ({"models": Reply({"x": 1})}, "does not answer", "engine.urls"),
    ],
)  # fmt: skip
def test_an_engine_that_lacks_something(server: Server, changed: dict[str, Reply], what: str, fix: str) -> None:
    found = list(check_engine(server.url, engine(server, **changed)))
    bad = [f for f in found if f.level != "ok"]
    assert levels(bad) == ["fail"]
    assert what in bad[0].what
    assert fix in bad[0].fix


def test_no_engine() -> None:
    (found,) = check_engine(f"http://127.0.0.1:{free_port()}", config())
    assert (found.level, "does not answer" in found.what) == ("fail", True)


def test_the_engines_key_is_sent(server: Server) -> None:
    engine(server)
    list(check_engine(server.url, config("engine.api_key=sk-e")))
    assert {s.headers["authorization"] for s in server.seen} == {"Bearer sk-e"}


def proxy(server: Server, date: str | None = None, **changed: object) -> None:
    server.on("GET", "/healthz", {}, **({"date": date} if date else {}))
    server.on("GET", "/status", {"version": "0", "started": 1.0, "models": {}, **changed})


def test_a_good_proxy(server: Server) -> None:
    proxy(server, calls=3, waiting=["2 of 8 scored groups"])
    found = list(check_proxy(server.url, "k"))
    assert levels(found) == ["ok", "ok"]
    assert found[0].what == f"the proxy at {server.url} answers; 3 calls recorded"
    assert found[1].what == "the next step waits: 2 of 8 scored groups"


@pytest.mark.parametrize(
    ("status", "level", "what", "fix"),
    [
        ({"capture_lost": 2}, "fail", "2 calls were served but not recorded", "disk"),
        (
            {"calls": 10, "untrainable": {"temperature 0": 5, "top_k": 4}},
            "warn",
            "most because: temperature 0 (5)",
            "never learns",
        ),
        ({"calls": 10, "untrainable": {"top_k": 6}}, "warn", "most because: top_k (6)", "docs/capture.md"),
        ({"calls": 201, "episodes": {"open": 1}}, "warn", "all 201 calls are one episode", "x-slipstream-episode"),
    ],
)
def test_a_proxy_in_trouble(server: Server, status: dict[str, object], level: str, what: str, fix: str) -> None:
    proxy(server, **status)
    bad = [f for f in check_proxy(server.url, None) if f.level != "ok"]
    assert levels(bad) == [level]
    assert what in bad[0].what
    assert fix in bad[0].fix


def test_clocks_that_differ(server: Server) -> None:
    proxy(server, formatdate(1e9, usegmt=True))
    bad = [f for f in check_proxy(server.url, None) if f.level != "ok"]
    assert levels(bad) == ["warn"]
    assert "clock differs" in bad[0].what


def test_no_proxy() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    (found,) = check_proxy(url, None)
    assert found.level == "warn"
    assert found.what.startswith(f"no proxy at {url}: ")
    assert "slipstream up" in found.fix


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(check_disk(config(f"data_dir={tmp_path}/not/yet")))
    assert set(levels(found)) <= {"ok", "warn"}  # a slow disk is a warning
    assert not (tmp_path / "not").exists()
    monkeypatch.setattr("slipstream.doctor.LOW_DISK_BYTES", 2**80)
    assert any(
        "GiB free where the spool and the store live" in f.what for f in check_disk(config(f"data_dir={tmp_path}"))
    )


def test_port() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        (taken,) = check_port(config(f"proxy.port={s.getsockname()[1]}"))
    assert taken.level == "warn"
    assert "is taken" in taken.what
    (free,) = check_port(config("proxy.port=0"))
    assert free.level == "ok"


def test_store() -> None:
    (found,) = check_store(config("store.url=duckdb:///x"))
    assert (found.level, found.what) == ("ok", "store: duckdb:///x")
    (found,) = check_store(config(f"store.url=postgresql://me:hush@127.0.0.1:{free_port()}/d"))
    assert found.level == "fail"
    assert "hush" not in found.what


def test_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [f.what for f in check_judge(config())] == ["no LLM judge is configured"]
    (by_function,) = check_judge(config("judge.function=a:b"))
    assert "judge.function = a:b" in by_function.what
    wanting = config("judge.model=openai/x", "judge.api_key_env=JUDGE_KEY")
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    (found,) = check_judge(wanting)
    assert (found.level, found.fix) == ("fail", "export JUDGE_KEY=…")
    monkeypatch.setenv("JUDGE_KEY", "x")
    assert levels(list(check_judge(wanting))) == ["ok"]


def test_trainer() -> None:
    assert list(check_trainer(config("trainer.enabled=false"))) == []
    (found,) = check_trainer(config())
    assert "trl" in found.what


def test_all_of_it(server: Server, tmp_path: Path) -> None:
    tree = engine(server).model_dump()
    proxy(server)
    findings = list(examine(load_config(env={}, base=tree | {"data_dir": str(tmp_path)}), server.url, None))
    assert "fail" not in levels(findings)
    told = as_json(findings)
    assert told[0] == {"level": "ok", "what": f"engine {server.url} serves inbox", "fix": ""}
    assert len(told) >= 8
    (first, *_) = examine(config(), server.url, None)
    assert (first.level, first.what) == ("warn", "no engine is configured")


def test_a_check_that_breaks_is_a_finding_too(server: Server, tmp_path: Path) -> None:
    proxy(server, calls=3)
    server.routes["GET", "/v1/models"] = Reply({"data": [{"no": "id"}]})
    findings = list(examine(config(f'engine.urls=["{server.url}"]', f"data_dir={tmp_path}"), server.url, None))
    assert any(f.level == "fail" and "itself failed" in f.what and server.url in f.what for f in findings)
    assert any("calls recorded" in f.what for f in findings)
