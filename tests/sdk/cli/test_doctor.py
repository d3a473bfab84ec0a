from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support import free_port
from tests.support.server import Server

from slipstream.cli import main


def test_findings_and_fixes(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("GET", "/healthz", {})
    server.on("GET", "/episodes", {"episodes": []})
    server.on("GET", "/status", {"version": "0", "started": 1.0, "models": {}, "calls": 5})
    Path("slipstream.toml").write_text("data_dir = 'd'\n[trainer]\nenabled = false\n[proxy]\nport = 0\n")
    assert main(["doctor", "--url", server.url]) == 0
    out = capsys.readouterr().out
    assert (
        "WARN  no engine is configured\n      why: no call of the trained model can be answered\n      fix: `slipstream init`"
        in out
    )
    assert f"ok    the proxy at {server.url} answers; 5 calls recorded\n" in out


def test_what_fails_is_exit_code_1(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    engine = f"http://127.0.0.1:{free_port()}"
    assert main(["doctor", "--url", server.url, "--engine", engine, "--name", "inbox", "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)
    assert findings[0]["level"] == "fail"
    assert engine in findings[0]["what"]
    assert findings[0]["fix"]


def test_a_wrong_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--set", "proxy.prot=1"]) == 2
    assert "did you mean proxy.port?" in capsys.readouterr().err
