"""The command line of a task's agent, against an engine that says one word."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from typing import Any

import pytest
from common import command
from common.task import Played, load_task
from retail.desk import cases
from tests.support.scripted import ScriptedEngine
from twenty48.task import Twenty48


def test_each_item_comes_several_times_in_a_row() -> None:
    ids = [case.id for case in command.repeated(cases("train"), 8, 24)]
    assert len(ids) == 24
    assert [len(set(ids[i : i + 8])) for i in (0, 8, 16)] == [1, 1, 1]
    assert len(set(ids)) == 3


class Counting:
    """An agent whose third episode fails. It knows how many run at once."""

    def __init__(self) -> None:
        self.begun = self.running = self.most = 0

    async def episode(
        self, item: Any, *, split: str = "train", tagged: bool = True, post_reward: bool = True
    ) -> Played:
        self.begun += 1
        number = self.begun
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.01)
        self.running -= 1
        if number == 3:
            raise ConnectionError("down")
        return Played(float(tagged), 1)

    async def close(self) -> None:
        raise AssertionError("whoever opened it closes it")


async def test_episodes_run_at_once_and_a_failed_one_ends_none_of_the_others() -> None:
    agent = Counting()
    some = itertools.islice(cases("train"), 7)
    outcomes = [o async for o in command.play_all(agent, some, concurrency=2, tagged=False)]
    assert agent.most == 2
    assert [type(o) for o in outcomes].count(ConnectionError) == 1
    assert [o for o in outcomes if isinstance(o, Played)] == [Played(0.0, 1)] * 6


async def test_who_stops_listening_ends_the_episodes() -> None:
    agent = Counting()
    episodes = command.play_all(agent, cases("train"), concurrency=4)
    async for _ in episodes:
        break
    await episodes.aclose()
    begun = agent.begun
    await asyncio.sleep(0.05)
    assert agent.begun == begun


@pytest.mark.parametrize(
    ("words", "name"), [([], "2048"), (["--model", "Qwen/Qwen3-4B", "--size", "4"], "Qwen/Qwen3-4B")]
)
def test_a_task_is_made_of_the_agents_own_options(words: list[str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--model` is the name that the endpoint is asked for."""
    seen: list[Any] = []

    async def note(task: Any, args: Any) -> int:
        seen.append((task.name, task.size, args.base_url))
        return 7

    monkeypatch.setattr(command, "run", note)
    monkeypatch.setattr(sys, "argv", ["agent.py", *words])
    monkeypatch.setenv("OPENAI_BASE_URL", "http://there/v1")
    options = command.arguments("about")
    options.add_argument("--size", type=int, default=3)
    assert command.main(lambda args: Twenty48(args.size), options) == 7
    assert seen == [(name, 4 if words else 3, "http://there/v1")]


@pytest.mark.parametrize(("up", "code"), [(True, 0), (False, 1)])
async def test_it_says_how_the_episodes_went(
    up: bool, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await ScriptedEngine(lambda body: {"role": "assistant", "content": "done"}).start()
    engine.models = {"retail"} if up else set()
    args = ["agent.py", "--base-url", f"{engine.url}/v1", "--episodes", "5", "--concurrency", "2", "--untagged"]
    monkeypatch.setattr(sys, "argv", args)
    task = load_task("retail")
    parsed = command.arguments("").parse_args()
    assert parsed.runs == 8
    assert await command.run(task, parsed) == code
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (figures["episodes"], figures["failed"]) == ((5, 0) if up else (0, 5))
    await engine.stop()
