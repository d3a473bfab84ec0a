"""Each finding with its fix, on this machine."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

import pytest
from tests.support import free_port
from tests.support.doctored import config, engine, levels
from tests.support.server import Reply, Server

from slipstream.config import load_config
from slipstream.operate.doctor.doctor import (  # fmt: skip
    as_json,
    check_configured,
    check_disk,
    check_judge,
    check_store,
    check_trainer,
    examine,
)
from slipstream.operate.doctor.ports import Running
from slipstream.shared.processes.proxy_file import announce_proxy


@pytest.fixture
def nothing_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The imports take seconds, and have tests of their own."""
    monkeypatch.setattr("slipstream.operate.doctor.doctor.check_imports", lambda *_: iter(()))


def proxy(server: Server) -> None:
    server.on("GET", "/healthz", {})
    server.on("GET", "/episodes", {"episodes": []})
    server.on("GET", "/status", {"version": "0", "started": 1.0, "models": {}, "calls": 3})


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(check_disk(config(f"data_dir={tmp_path}/not/yet")))
    assert set(levels(found)) <= {"ok", "warn"}  # a slow disk is a warning
    assert not (tmp_path / "not").exists()
    monkeypatch.setattr("slipstream.operate.doctor.doctor.LOW_DISK_BYTES", 2**80)
    monkeypatch.setattr("slipstream.operate.doctor.doctor.SLOW_SYNC_MS", -1)
    low, slow = check_disk(config(f"data_dir={tmp_path}"))
    assert "GiB free where the spool and the store live" in low.what
    assert "fdatasync takes" in slow.what
    assert "proxy.durability" in slow.fix


def test_a_model_that_brings_its_own_code(tmp_path: Path) -> None:
    described = {"model_type": "internlm3", "auto_map": {"AutoConfig": "configuration.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(described))
    (bad,) = [f for f in check_trainer(config(f"engine.model={tmp_path}")) if f.level == "fail"]
    assert "the trainer can't load it: the model" in bad.what and "brings its own code" in bad.what
    assert "trainer.enabled = false" in bad.fix


def test_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    (found,) = check_disk(config(f"data_dir={tmp_path}/theirs"))
    assert (found.level, "can't be written" in found.what) == ("fail", True)
    assert "chown" in found.fix
    (store,) = check_store(config(f"data_dir={tmp_path}"))
    assert (store.level, "slipstream.duckdb is another user's" in store.what) == ("fail", True)


@pytest.mark.parametrize(("name", "url"), [("psycopg", "postgresql://h/d"), ("duckdb", "duckdb:///{}/x")])
def test_a_store_without_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, url: str) -> None:
    (tmp_path / "x").touch()
    monkeypatch.setitem(sys.modules, name, None)
    (found,) = check_store(config(f"store.url={url.format(tmp_path)}"))
    said = {"psycopg": "psycopg is not installed", "duckdb": "duckdb is not installed"}[name]
    assert (found.level, found.what, found.fix) == ("fail", said, "pip install 'slipstream[proxy]'")


def test_store(tmp_path: Path) -> None:
    (found,) = check_store(config("store.url=duckdb:///x"))
    assert (found.level, found.what) == ("ok", "store: duckdb:///x (to be made)")
    (found,) = check_store(config(f"store.url=postgresql://me:hush@127.0.0.1:{free_port()}/d"))
    assert found.level == "fail"
    assert "hush" not in found.what
    (tmp_path / "bad").write_bytes(b"no database, for sure" * 1000)
    (found,) = check_store(config(f"store.url=duckdb:///{tmp_path}/bad"))
    assert (found.level, "can't be opened" in found.what) == ("fail", True)
    assert "backup" in found.fix


def test_a_store_that_can_be_opened(tmp_path: Path) -> None:
    import duckdb

    path = tmp_path / "good"
    duckdb.connect(path).close()
    (found,) = check_store(config(f"store.url=duckdb:///{path}"))
    assert (found.level, "can be opened" in found.what) == ("ok", True)


def test_judge(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "JUDGE_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert [f.what for f in check_judge(config())] == ["no LLM judge is configured"]
    (by_function,) = check_judge(config("judge.function=a:b"))
    assert "judge.function = a:b" in by_function.what
    (found,) = check_judge(config("judge.model=openai/x"))
    assert (found.level, found.fix) == ("fail", "export OPENAI_API_KEY=…, or set judge.api_key_env")
    assert found.what.startswith("no key for the judge openai/x")
    wanting = config("judge.model=openai/x", "judge.api_key_env=JUDGE_KEY")
    (found,) = check_judge(wanting)
    assert (found.level, found.fix) == ("fail", "export JUDGE_KEY=…")
    monkeypatch.setenv("JUDGE_KEY", "sk-of-a-judge")
    (found,) = check_judge(wanting)
    assert (found.level, "sk-of-a-judge" in found.what) == ("ok", False)
    assert levels(list(check_judge(config("judge.model=ollama/x")))) == ["ok"]
    (own,) = check_judge(config("judge.model=self"))
    assert own.level == "ok" and "judge eval" in own.what


def test_a_judge_whose_scores_have_no_weight() -> None:
    found, fine = check_judge(config("judge.model=ollama/x", "reward.weights={ reward = 1 }"))
    assert (found.level, fine.level) == ("warn", "ok")
    assert "'judge' train nothing" in found.what and "add judge = 1.0 to reward.weights" in found.fix
    both = ("judge.model=ollama/x", "judge.function=a:b", "reward.weights={ judge = 1 }")
    assert [f.what.split(" train")[0] for f in check_judge(config(*both))][0] == "the judge's scores named 'function'"


def test_the_judges_key_is_tried(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-of-a-judge")
    base = config("judge.model=openai/x", "judge.api_key_env=JUDGE_KEY", f"judge.api_base={server.url}/v1")
    server.on("GET", "/v1/models", {"data": []})
    assert levels(list(check_judge(base))) == ["ok"]
    assert server.seen[-1].headers["authorization"] == "Bearer sk-of-a-judge"
    server.on("GET", "/v1/models", {"error": "no"}, 401)
    (found,) = check_judge(base)
    assert (found.level, "refuses the key" in found.what) == ("fail", True)
    assert "judge.api_key_env" in found.fix
    (found,) = check_judge(config("judge.model=openai/x", f"judge.api_base=http://127.0.0.1:{free_port()}/v1"))
    assert (found.level, "does not answer" in found.what) == ("fail", True)


def test_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(check_trainer(config("trainer.enabled=false"))) == []
    monkeypatch.setattr("slipstream.operate.doctor.doctor.has_gpu", lambda: False)
    versions, gpu = check_trainer(config())
    assert (versions.level, "trl" in versions.what) == ("ok", True)
    assert (gpu.level, "no GPU" in gpu.what) == ("ok", True)


@pytest.mark.parametrize(
    ("package", "version", "what", "fix"),
    [
        ("trl", "1.14.0", "trl 1.14.0 is untested", "trl>=1.15,<1.17"),
        ("trl", "1.17.0", "trl 1.17.0 is untested", "trl>=1.15,<1.17"),
        ("trl", "1.15.3", "no CPU path", "trl>=1.16"),
        ("peft", "0.20.9", "peft 0.20.9: older", "slipstream[trainer]"),
    ],
)
def test_versions_that_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, package: str, version: str, what: str, fix: str
) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr("importlib.metadata.version", lambda name: version if name == package else real(name))
    monkeypatch.setattr("slipstream.operate.doctor.doctor.has_gpu", lambda: False)
    bad = [f for f in check_trainer(config()) if f.level == "fail"]
    assert len(bad) == 1
    assert what in bad[0].what
    assert fix in bad[0].fix


@pytest.mark.parametrize("client_alone", [False, True])
def test_a_package_that_is_not_there(monkeypatch: pytest.MonkeyPatch, client_alone: bool) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", version)
    if client_alone:
        monkeypatch.setattr("slipstream.operate.doctor.doctor.installed", lambda name: name != "duckdb")
        (found,) = check_trainer(config())
        assert (found.level, "client alone" in found.what) == ("ok", True)
        return
    (found,) = check_trainer(config())
    assert (found.level, found.what, found.fix) == (
        "fail",
        "torch is not installed",
        "pip install 'slipstream[trainer]'",
    )


def test_the_trainers_own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("slipstream.operate.doctor.doctor.has_gpu", lambda: False)
    other = tmp_path / "python"
    other.write_text(
        "#!/bin/sh\necho '"
        '{"torch": "2.12.1", "transformers": "5.17.0", "trl": "1.16.0", "peft": "0.21.0", "accelerate": "1.15.0", "unsloth": "2026.10.9"}'
        "'\n"
    )
    other.chmod(0o755)
    versions, _ = check_trainer(config(f"trainer.python={other}", "trainer.mode=frugal"))
    assert (versions.level, "torch 2.12.1" in versions.what, "unsloth 2026.10.9" in versions.what) == ("ok", True, True)
    first, *_ = check_trainer(config("trainer.mode=frugal"))
    assert (first.level, first.fix) == ("fail", "pip install 'slipstream[unsloth]'")
    (found,) = check_trainer(config(f"trainer.python={tmp_path}/none"))
    assert (found.level, "can't be run" in found.what) == ("fail", True)


def test_a_gpu_that_torch_cannot_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr("slipstream.operate.doctor.doctor.has_gpu", lambda: True)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0+cpu" if name == "torch" else real(name))
    (bad,) = [f for f in check_trainer(config()) if f.level == "fail"]
    assert "torch 2.13.0+cpu cannot use it" in bad.what
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0" if name == "torch" else real(name))
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 570.1'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list(check_trainer(config()))[-1].what == "GPU: NVIDIA H200, 143771 MiB, 570.1"
    smi.unlink()
    (slow,) = [f for f in check_trainer(config()) if f.level == "warn"]
    assert "nvidia-smi does not answer" in slow.what


def test_all_of_it(server: Server, tmp_path: Path) -> None:
    tree = engine(server).model_dump()
    proxy(server)
    findings = list(examine(load_config(env={}, base=tree | {"data_dir": str(tmp_path)}), server.url, None))
    assert "fail" not in levels(findings)
    told = as_json(findings)
    assert told[0] == {"level": "ok", "what": f"engine {server.url} serves inbox (vLLM 0.32.0)", "why": "", "fix": ""}
    assert len(told) >= 9
    (first, *_) = examine(config(), server.url, None)
    assert (first.level, first.what) == ("warn", "no engine is configured")


@pytest.mark.usefixtures("nothing_imported")
def test_the_engine_of_a_running_up_is_checked(server: Server, tmp_path: Path) -> None:
    """Its model and its URL stood on the command line alone: the proxy knows them."""
    engine(server)
    proxy(server)
    running = {
        "version": "0",
        "started": 1.0,
        "models": {"inbox": "inbox@3"},
        "calls": 3,
        "engines": [{"url": server.url, "ok": True}],
    }
    server.on("GET", "/status", running)
    announce_proxy(tmp_path, server.url)
    findings = list(examine(load_config(env={}, flags=[f"data_dir={tmp_path}"]), None, None))
    assert "fail" not in levels(findings)
    assert findings[0].what == f"engine {server.url} serves inbox (vLLM 0.32.0)"
    assert not any("no engine" in f.what or "no proxy" in f.what for f in findings)


def test_a_model_that_cannot_be_served_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 2, "hidden_size": 8}')
    found = next(
        iter(examine(config(f"engine.model={tmp_path}", f"data_dir={tmp_path}/d"), "http://127.0.0.1:1", None))
    )
    assert (found.level, "smaller than its hidden size" in found.what) == ("fail", True)


@pytest.mark.usefixtures("nothing_imported")
def test_a_check_that_breaks_is_a_finding_too(server: Server, tmp_path: Path) -> None:
    proxy(server)
    server.routes["GET", "/v1/models"] = Reply({"data": [{"no": "id"}]})
    findings = list(examine(config(f'engine.urls=["{server.url}"]', f"data_dir={tmp_path}"), server.url, None))
    assert any(f.level == "fail" and "itself failed" in f.what and server.url in f.what for f in findings)
    assert any("calls recorded" in f.what for f in findings)


def test_what_answers_calls() -> None:
    (busy,) = check_configured(config(), Running(busy="the engine loads the model"))
    assert levels([busy]) == ["warn"] and busy.what == "the engine loads the model" and "up.log" in busy.fix
    (missing,) = check_configured(config(), Running())
    assert levels([missing]) == ["warn"] and "slipstream init" in missing.fix
    assert list(check_configured(config(), Running(engines=("http://e",)))) == []
