"""Process rewards: the judge grades each call of a run."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.groups import calls_tool, episode, group, result, said

from slipstream.config import load_config
from slipstream.errors import ApiError, ConfigError
from slipstream_judge.compare.process import CallJudge, graded_calls, grades_in
from slipstream_judge.model.llm import JudgeFailed
from slipstream_judge.run.worker import JudgeWorker

MESSAGES = [said("user", "When?"), calls_tool("t", "search", '{"q": "dana"}'), result("t", "nine"), said("assistant", "At nine.")]  # fmt: skip


def run(name: str, context: bool = False):
    made = episode(name, [{"messages": MESSAGES[:n], "reply": [MESSAGES[n]]} for n in (1, 3)])
    made.context = context
    made.calls[:] = [c.model_copy(update={"id": f"{name}{n}"}) for n, c in enumerate(made.calls)]
    return made


class Grader(CallJudge):
    def __init__(self, *answers: str) -> None:
        super().__init__(self, 1000)  # type: ignore[arg-type]
        self.answers, self.asked = list(answers), []

    async def ask(self, messages, schema, deadline):
        self.asked.append(json.loads(messages[1]["content"]))
        return SimpleNamespace(text=self.answers.pop(0))


async def graded(*answers: str, runs=("a", "b"), refused: dict[str, list[int]] | None = None):
    told: list[Any] = []

    async def add_reward(episode, reward, *, of_key):
        if statuses := (refused or {}).get(episode):
            raise ApiError(statuses.pop(0), "no")
        told.append((episode, reward.call, reward.value, reward.name, reward.source, reward.ends({"judge"})))

    worker: Any = JudgeWorker.__new__(JudgeWorker)
    rubrics = SimpleNamespace(of=lambda task: "be right")
    grader = Grader(*answers)
    worker.panel = SimpleNamespace(calls=grader, rubrics=rubrics)
    worker.lane = asyncio.Semaphore(1)
    worker.client, worker.config = (
        SimpleNamespace(add_reward=add_reward),
        SimpleNamespace(judge=SimpleNamespace(name="judge")),
    )
    await worker._grade_calls(group("g", [run(name) for name in runs]), time.time() + 60)
    return told, grader.asked


async def test_each_call_of_each_run_gets_its_grade():
    told, asked = await graded('{"grades": [1, 0.5]}', 'Thus:\n{"grades": [-1, 0]}')
    assert [t[:3] for t in told] == [("a", "a0", 1.0), ("a", "a1", 0.5), ("b", "b0", -1.0), ("b", "b1", 0.0)]
    assert {t[3:] for t in told} == {("judge", "judge", False)}, "a call's grade does not end its run"
    assert asked[0]["rubric"] == "be right" and asked[0]["task"].endswith("When?")
    first, last = asked[0]["steps"]
    assert "search" in first["said"] and first["then"] == "nine"
    assert (last["said"], last["then"]) == ("At nine.", "")


async def test_a_run_that_is_forgotten_meanwhile_keeps_no_grade_from_the_others():
    answers = ['{"grades": [1, 0.5]}', '{"grades": [-1, 0]}']
    told, _ = await graded(*answers, refused={"a": [404]})
    assert [t[:3] for t in told] == [("b", "b0", -1.0), ("b", "b1", 0.0)]
    told, _ = await graded(*answers, refused={"b": [503]})
    assert [t[1] for t in told] == ["a0", "a1", "b0", "b1"], "a proxy that is away for a moment is asked again"


async def test_one_run_without_grades_leaves_all_without():
    """Else graded calls would be compared with whole runs."""
    assert (await graded('{"grades": [1, 1]}', '{"grades": [1]}'))[0] == []


@pytest.mark.parametrize("answer", ["no", '{"grades": [1]}', '{"grades": [1, 2]}', '{"grades": [1, true]}', '{"grades": [1, "0"]}', "[1, 1]"])  # fmt: skip
def test_what_is_no_grade_for_each_step_is_refused(answer: str):
    with pytest.raises(JudgeFailed, match="each of the 2 steps"):
        grades_in(answer, 2)


def test_a_run_of_one_call_and_one_for_comparison_get_none():
    assert graded_calls(run("a", context=True)) == []
    one = run("a")
    one.calls.pop()
    assert graded_calls(one) == []


def test_grades_need_credit_to_calls():
    base: dict[str, Any] = {"judge": {"model": "openai/x", "calls": True}}
    with pytest.raises(ConfigError, match=r"judge.calls: set judge.model and reward.credit"):
        load_config(None, env={}, base=base)
    assert load_config(None, env={}, base=base | {"reward": {"credit": "call"}}).judge.calls
