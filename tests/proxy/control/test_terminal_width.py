"""Every command on a real store, on a terminal of 80 columns: nothing is broken in mid-word, and dates are ages."""

from __future__ import annotations

import asyncio
import re

import pytest
from tests.support.page_data import PLANE, Runs, make_demo, user

from slipstream.cli import main
from slipstream.cli.common import text_width
from slipstream.client import sessions

COLUMNS = 80
LONG_TASK = "Please sort the mail that came in while I was away, and tell me which of it cannot wait until Monday"
COMMANDS = [
    "status", "status --all", "episodes", "episodes --limit 5", "episodes --where outcome=error", "episodes tangle", "episodes long-name-run",
    "adapters", "adapters promote tiny@3 --dry-run", "adapters replay tiny@3", "audit", "audit --limit 3", "cost", "cost --by task", "doctor", "config", "config --all", "sql {SELECT}", "sql {SELECT_WIDE}", "--help",
]  # fmt: skip
QUERIES = {"{SELECT}": "SELECT id, task FROM episodes", "{SELECT_WIDE}": "SELECT * FROM episodes LIMIT 3"}
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
HAS_DATES = ("sql", "config", "doctor", "--help")
"""Columns of the store are what they are; versions of packages look like dates."""


def said(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        main(argv)
    except SystemExit as e:
        assert e.code == 0, argv
    return capsys.readouterr().out


async def test_each_command_fits_into_80_columns(make_plane, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    plane = await make_plane(**PLANE)
    await make_demo(plane)
    await plane.call("long-name-run-" + "x" * 60, task="long", tags={"task-text": LONG_TASK})
    await Runs(plane).call("broken", [user("Sort the mail.")], outcome="error", status=400)
    for name in ("long-name-run-" + "x" * 60, "broken"):
        await plane.seen(name)
    assert (await plane.ask("POST", "/cases/kept", {"episodes": ["run-1-0", "tangle"]}))[0] == 200
    url, key = str(plane.client.make_url("/")).rstrip("/"), plane.as_()
    settings = sessions._settings
    monkeypatch.setattr(
        sessions, "_settings", lambda *a: (settings(*a)[0], {**settings(*a)[1], **key}, settings(*a)[2])
    )
    monkeypatch.setenv("SLIPSTREAM_URL", url)
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    texts: dict[str, str] = {}
    for command in COMMANDS:
        argv = [QUERIES.get(word, word) for word in command.split()]
        argv = ["long-name-run-" + "x" * 60 if word == "long-name-run" else word for word in argv]
        texts[command] = await asyncio.to_thread(said, argv, capsys)
    lines = [(command, line) for command, text in texts.items() for line in text.splitlines()]
    # a path or an id of one word is never broken
    assert [x for x in lines if text_width(x[1]) > COLUMNS and " " in x[1].strip()] == []
    dated = {c: found for c, text in texts.items() if not c.startswith(HAS_DATES) and (found := DATE.findall(text))}
    assert dated == {}

    assert all(texts.values()) and not any("\x1b" in text for text in texts.values()), "colours without a terminal"
    assert "5 of 4" in texts["episodes --limit 5"] and ", --all" in texts["episodes --limit 5"]
    assert "broken" in texts["episodes --where outcome=error"]
