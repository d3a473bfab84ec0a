from __future__ import annotations

import json

import pytest
from tests.support.answers import fill
from tests.support.server import Server

from slipstream.cli import main


def test_it_says_how_it_ends(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    fill(server)
    assert main(["pause", "--url", server.url, "--reason", "new rewards"]) == 0
    assert capsys.readouterr().out == "training is paused (by ann): slipstream resume ends it\n"
    assert server.seen[0].json == {"reason": "new rewards"}
    assert main(["pause", "--url", server.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["paused"] is True
    server.on("POST", "/training/pause", {"paused": True, "by": "-"})
    assert main(["pause", "--url", server.url]) == 0  # a proxy without keys knows nobody's name
    assert capsys.readouterr().out == "training is paused: slipstream resume ends it\n"
