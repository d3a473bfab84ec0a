from __future__ import annotations

import json

import pytest
from tests.support.answers import fill
from tests.support.server import Server

from slipstream.cli import main


def test_a_note(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    fill(server)
    assert main(["annotate", "--url", server.url, "new prompt", "--at", "5"]) == 0
    assert capsys.readouterr().out == "noted\n"
    assert server.seen[0].json == {"text": "new prompt", "at": 5.0, "rewards_changed": False}
    assert main(["annotate", "--url", server.url, "points now", "--rewards-changed"]) == 0
    assert "the gate counts only runs that begin from then on" in capsys.readouterr().out
    assert server.seen[1].json == {"text": "points now", "at": None, "rewards_changed": True}
    assert main(["annotate", "--url", server.url, "new prompt", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"annotations": []}
