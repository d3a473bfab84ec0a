from __future__ import annotations

import json

import pytest
from tests.support.answers import fill
from tests.support.server import Server

from slipstream.cli import main


def test_training_goes_on(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    fill(server)
    assert main(["resume", "--url", server.url]) == 0
    assert capsys.readouterr().out == "training goes on\n"
    assert main(["resume", "--url", server.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["paused"] is False
