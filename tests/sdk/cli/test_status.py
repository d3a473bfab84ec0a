from __future__ import annotations

import json
import time
from email.utils import formatdate
from pathlib import Path

import pytest
from tests.support import free_port
from tests.support.server import Server

from slipstream.cli import main
from slipstream.shared.processes.sidecars import SidecarFile
from slipstream.shared.processes.supervisor import Child

STATUS = {
    "version": "0.1.0", "started": 1e9, "models": {"inbox": "inbox@3"}, "engines": [{"url": "http://e:1", "ok": True}, {"url": "http://e:2", "ok": False}],
    "episodes": {"done": 7, "open": 2}, "groups": {"waiting": 1}, "calls": 30, "capture_lost": 1, "ingest_lag_seconds": 0.25, "steps": 4,
    "last_step": 1e9, "untrainable": {"top_k": 3}, "waiting": [],
    "funnel": {"lines": [
        {"stage": "ready", "cause": "too_few", "count": 5, "text": "5 of 8 scored groups", "severity": "remark"},
        {"stage": "reward", "cause": "missing", "count": 2, "text": "2 groups have no reward", "fix": "post one", "severity": "blocks"},
        {"stage": "lost", "cause": "stale_judge", "count": 2, "text": "2 groups were lost", "severity": "slows"},
    ]},
}  # fmt: skip


def test_where_things_stand_and_what_the_next_step_waits_for(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    space = {"parts": {"checkpoints": 1_500_000_000, "store": 20_000_000}, "limit": 10**9}
    server.on("GET", "/status", STATUS | {"space": space})
    assert main(["status", "--url", server.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["! 2 groups have no reward → post one", "- 2 groups were lost"], "the worst comes first"
    assert lines[2].startswith("(! = nothing is learned, or the agent's calls fail")
    del lines[:3]
    full = lines.pop(7)
    assert full.startswith("  disk 1.5 GB of data.max_gb = 1: checkpoints 1.5 GB, store 20 MB; ")
    assert full.endswith("→ raise data.max_gb, or set trainer.keep_checkpoints = 1")
    assert lines[0].startswith("slipstream 0.1.0, up for ")
    assert lines[1:5] == [
        "  inbox: new episodes get inbox@3",
        "  engine http://e:1: ok",
        "  engine http://e:2: down",
        "  calls 30 (1 lost), episodes 7 done, 2 open",
    ]
    assert lines[5] == "  groups 1 waiting"
    assert lines[6].endswith("ingest is 0.2 s behind")
    assert lines[7:] == ["  1 remark on what comes next: `slipstream status --all`"]
    assert main(["status", "--url", server.url, "--all"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "  - 5 of 8 scored groups"


def test_a_clock_that_is_wrong_is_a_trouble(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("GET", "/status", {"version": "0", "started": 1e9, "models": {}})
    server.on("GET", "/healthz", {}, date=formatdate(time.time() - 3600, usegmt=True))
    assert main(["status", "--url", server.url]) == 0
    said = capsys.readouterr().out.splitlines()[0]
    assert said.startswith("- the proxy's clock is 3600 s behind") or said.startswith("- the proxy's clock is 3601 s")
    assert "NTP" in said


def test_an_engine_that_takes_no_adapters(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    outage = {"cause": "no_adapter_routes", "since": 1e9, "text": "it has no route", "fix": "start it again"}
    without = {"url": "http://e:1", "ok": True, "outage": outage}
    models = {"tiny": "tiny@3", "other": "other"}
    server.on("GET", "/status", STATUS | {"models": models, "engines": [without]})
    assert main(["status", "--url", server.url]) == 0
    said = capsys.readouterr().out
    assert "  engine http://e:1: ok, but has taken no adapters for " in said
    assert "  tiny: new episodes get the base model, and tiny@3 once an engine takes adapters\n" in said
    assert "  other: new episodes get other\n" in said
    server.on("GET", "/status", STATUS | {"models": models, "engines": [without | {"loaded": ["tiny@3"]}]})
    assert main(["status", "--url", server.url]) == 0
    assert "  tiny: new episodes get tiny@3\n" in capsys.readouterr().out
    server.on("GET", "/status", STATUS | {"models": models, "engines": [without, {"url": "http://e:2", "ok": True}]})
    assert main(["status", "--url", server.url]) == 0
    assert "  tiny: new episodes get tiny@3\n" in capsys.readouterr().out
    gets = "10% of new runs get tiny@4 (stage 2 of 2): a verdict comes next"
    server.on("GET", "/status", STATUS | {"models": {"tiny": "tiny@3"}, "canaries": {"tiny": gets}, "engines": []})
    assert main(["status", "--url", server.url]) == 0
    assert f"  tiny: new episodes get tiny@3, but {gets}\n" in capsys.readouterr().out


def test_as_json(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("GET", "/status", STATUS)
    assert main(["status", "--url", server.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["funnel"]["lines"][1]["fix"] == "post one"


def test_a_fresh_proxy(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("GET", "/status", {"version": "0", "started": 1e9, "models": {}})
    assert main(["status", "--url", server.url]) == 0
    out = capsys.readouterr().out
    assert "episodes none" in out
    assert "last never" in out


def test_while_the_engine_starts(capsys: pytest.CaptureFixture[str]) -> None:
    own = Child("engine", ["x"], slow_start=True, answers=False, starts=1, since=time.time() - 42)
    SidecarFile(Path("slipstream-data"))([own])
    Path("slipstream.toml").write_text(f"[proxy]\nport = {free_port()}\n")
    assert main(["status"]) == 1
    assert "the engine is starting (4" in capsys.readouterr().out
    assert main(["status", "--json"]) == 1
    assert "the engine is starting" in json.loads(capsys.readouterr().out)["starting"]
    main(["doctor"])
    said = capsys.readouterr().out
    assert "WARN  the engine is starting (4" in said and "the proxy is not there yet" in said
    assert "slipstream up`, or give" not in said
    own.answers = True
    SidecarFile(Path("slipstream-data"))([own])
    assert main(["status"]) == 1
    assert "does not answer" in capsys.readouterr().err


def test_an_engine_that_only_relays_text_says_so(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    text = {"url": "http://e:1", "ok": True, "title": "llama.cpp", "outage": {"cause": "no_token_ids", "since": 1e9}}
    server.on("GET", "/status", STATUS | {"engines": [text]})
    assert main(["status", "--url", server.url]) == 0
    assert "  engine http://e:1 (llama.cpp): ok; it gives no token ids, so " in capsys.readouterr().out
