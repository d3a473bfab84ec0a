from __future__ import annotations

import json

import pytest
from tests.support.server import Server

from slipstream.cli import main


def test_a_table(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("POST", "/sql", {"columns": ["adapter", "n"], "rows": [["inbox@1", 10], [None, 2]]})
    assert main(["sql", "select 1", "--limit", "2", "--url", server.url]) == 0
    out, err = capsys.readouterr()
    assert out == "adapter  n\ninbox@1  10\nNone     2\n"
    assert err == ""
    assert server.seen[0].json == {"query": "select 1", "limit": 2}


def test_what_was_cut_is_told_apart(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("POST", "/sql", {"columns": ["n"], "rows": [[1]], "truncated": True})
    assert main(["sql", "select 1", "--limit", "1", "--url", server.url]) == 0
    assert capsys.readouterr().err == "(cut at 1 rows: --limit)\n"


def test_as_json(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("POST", "/sql", {"columns": ["n"], "rows": [[1.5]]})
    assert main(["sql", "select 1", "--json", "--url", server.url]) == 0
    assert json.loads(capsys.readouterr().out) == {"columns": ["n"], "rows": [[1.5]], "truncated": False}


@pytest.mark.parametrize(("query", "limit"), [("", "1"), ("select 1", "0"), ("select 1", "9999999")])
def test_what_the_contract_refuses_is_told_in_a_line(
    server: Server, capsys: pytest.CaptureFixture[str], query: str, limit: str
) -> None:
    assert main(["sql", query, "--limit", limit, "--url", server.url]) == 2
    err = capsys.readouterr().err
    assert err.startswith("slipstream sql: ")
    assert err.count("\n") == 1
    assert server.seen == []
