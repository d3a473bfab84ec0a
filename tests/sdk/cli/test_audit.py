from __future__ import annotations

import json

import pytest
from tests.support.answers import fill
from tests.support.server import Server

from slipstream.cli import main


def test_entries_one_a_line(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    fill(server)
    assert main(["audit", "--url", server.url, "--action", "promote", "--limit", "5"]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split() == ["age", "who", "what", "on", "with"]
    assert line.split()[-5:] == ["ann", "promote", "inbox@1", "reason:", "better"]
    assert server.seen[0].query == {"action": ["promote"], "limit": ["5"]}
    assert main(["audit", "--url", server.url, "--since", "2026-05-01", "--json"]) == 0
    assert server.seen[1].query["since"] == ["1777593600.0"]
    assert json.loads(capsys.readouterr().out)["entries"][0]["action"] == "promote"
