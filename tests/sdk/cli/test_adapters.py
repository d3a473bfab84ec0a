from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.server import Server

from slipstream.cli import main

ADAPTER = {
    "name": "inbox@1",
    "model": "inbox",
    "version": 1,
    "state": "live",
    "created": 1e9,
    "path": "inbox@1",
    "step": 0,
    "episodes": 3,
}
REFUSED = ADAPTER | {"name": "inbox@2", "version": 2, "state": "refused", "reason": "rank 64 is above 16", "step": None}


def test_a_list(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("GET", "/adapters", {"adapters": [ADAPTER, REFUSED], "live": {"inbox": "inbox@1"}})
    for args in ([], ["list"]):
        assert main(["adapters", "--url", server.url, *args]) == 0
        live, header, first, second = capsys.readouterr().out.splitlines()
        assert live == "inbox: new episodes get inbox@1"
        assert header.startswith("adapter  state")
        assert first.split()[:4] == ["inbox@1", "live", "0", "3"]
        assert second.split()[:3] == ["inbox@2", "refused", "-"]
        assert second.endswith("rank 64 is above 16")
    assert main(["adapters", "--url", server.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["live"] == {"inbox": "inbox@1"}


def test_how_to_bring_back_what_an_older_version_refused(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    lost = REFUSED | {"reason": 'the engine refuses it: load_lora_adapter answered 404: {"detail":"Not Found"}'}
    server.on("GET", "/adapters", {"adapters": [lost | {"files": True}, REFUSED], "live": {}})
    assert main(["adapters", "--url", server.url]) == 0
    (said,) = [line for line in capsys.readouterr().out.splitlines() if "promote" in line]
    assert "`slipstream adapters promote inbox@2`" in said and "took no adapters" in said
    server.on("GET", "/adapters", {"adapters": [lost | {"files": False}, REFUSED], "live": {}})
    assert main(["adapters", "--url", server.url]) == 0
    assert "promote" not in capsys.readouterr().out


def test_those_since(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("GET", "/adapters", {"adapters": [ADAPTER, REFUSED | {"created": 2e9}], "live": {}})
    assert main(["adapters", "list", "--since", "2026-05-01", "--json", "--url", server.url]) == 0
    assert [a["name"] for a in json.loads(capsys.readouterr().out)["adapters"]] == ["inbox@2"]
    assert main(["adapters", "--since", "lately", "--url", server.url]) == 2
    assert "--since lately: write an age" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["promote", "rollback"])
def test_the_gate_by_hand(server: Server, capsys: pytest.CaptureFixture[str], action: str) -> None:
    server.on("POST", f"/adapters/inbox@1/{action}", ADAPTER)
    assert main(["adapters", "--url", server.url, action, "inbox@1", "--reason", "I say so"]) == 0
    assert capsys.readouterr().out == "inbox@1: live\n"
    assert server.seen[0].json == {"reason": "I say so"}
    assert main(["adapters", "--json", "--url", server.url, action, "inbox@1"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "inbox@1"


def test_push(server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    server.on("GET", "/adapters", {"adapters": [ADAPTER], "live": {}})
    source = tmp_path / "adapters" / "inbox@1"
    source.mkdir(parents=True)
    (source / "adapter_config.json").write_text("{}")
    common = ["adapters", "--url", server.url, "--set", f"adapters.dir={source.parent}"]
    assert main([*common, "push", "1", "--to", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/out/inbox@1\n"
    assert (tmp_path / "out/inbox@1/README.md").is_file()
    assert main([*common, "push", "1", "--to", str(tmp_path / "out")]) == 1
    assert "is there already" in capsys.readouterr().err
