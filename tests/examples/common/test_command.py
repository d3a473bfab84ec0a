"""The command line of a task's agent, against an engine that says one word."""

from __future__ import annotations

import json
import sys

import pytest
from common import command
from common.task import load_task
from retail.desk import cases
from tests.support.scripted import ScriptedEngine


def test_each_item_comes_several_times_in_a_row() -> None:
    ids = [case.id for case in command.repeated(cases("train"), 8, 24)]
    assert len(ids) == 24
    assert [len(set(ids[i : i + 8])) for i in (0, 8, 16)] == [1, 1, 1]
    assert len(set(ids)) == 3


@pytest.mark.parametrize(("up", "code"), [(True, 0), (False, 1)])
async def test_it_says_how_the_episodes_went(
    up: bool, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await ScriptedEngine(lambda body: {"role": "assistant", "content": "done"}).start()
    engine.models = {"retail"} if up else set()
    args = ["agent.py", "--base-url", f"{engine.url}/v1", "--episodes", "5", "--concurrency", "2", "--untagged"]
    monkeypatch.setattr(sys, "argv", args)
    task = load_task("retail")
    parsed = command.arguments("")
    assert parsed.runs == 8
    assert await command.run(task, parsed) == code
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (figures["episodes"], figures["failed"]) == ((5, 0) if up else (0, 5))
    await engine.stop()
