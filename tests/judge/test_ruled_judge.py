from __future__ import annotations

import time

import pytest
from tests.support.groups import calls_tool, episode, group, result, said
from tests.support.ruled_judge import inbox_rule

from slipstream.settings import JudgeConfig
from slipstream_judge.compare.group import GroupJudge
from slipstream_judge.compare.rubric import Rubrics
from slipstream_judge.compare.ruler import Ruler
from slipstream_judge.model.budget import Budget
from slipstream_judge.model.cache import VoteCache
from slipstream_judge.model.llm import Llm
from slipstream_judge.model.metrics import JudgeMetrics


def inbox_run(question, mail, answer):
    """What the inbox agent's calls look like: search, read, answer."""
    messages = [said("system", "find the mail"), said("user", question)]
    calls = []
    for name, arguments, answered in (
        ("search", '{"keywords": "dana"}', "mail 3: dentist dana; mail 4: rent omar"),
        ("read", '{"id": 3}', mail),
        ("answer", f'{{"text": "{answer}"}}', None),
    ):
        if name == "answer" and answer is None:
            calls.append({"messages": list(messages), "reply": [said("assistant", "no idea")]})
            break
        asks = calls_tool(f"c{len(calls)}", name, arguments)
        calls.append({"messages": list(messages), "reply": [asks]})
        messages += [asks, result(f"c{len(calls) - 1}", answered or "")]
    return calls


QUESTIONS = [
    "when is the dentist for dana", "what day is the dentist for dana", "tell me when the dentist for dana is", "say what day the dentist for dana is", "do you know when the dentist for dana is",
]  # fmt: skip
RIGHT, OTHER = "the dentist for dana: monday", "the rent for omar is friday"


@pytest.mark.parametrize("question", QUESTIONS)
async def test_the_rule_sees_success_in_transcripts_alone(ruled, question):
    ruled.rule = inbox_rule
    judge = JudgeConfig(model="openai/ruled", api_base=ruled.url)
    metrics = JudgeMetrics()
    ruler = Ruler(judge, Llm(judge, Budget(judge, metrics), metrics), metrics)
    scorer = GroupJudge(judge, ruler, Rubrics(judge), VoteCache(None, metrics), metrics)
    runs = {
        "right": inbox_run(question, RIGHT, "Monday"),
        "wrong-mail": inbox_run(question, OTHER, "friday"),
        "wrong-day": inbox_run(question, RIGHT, "friday"),
        "gave-up": inbox_run(question, RIGHT, None),
        "guessed-right": inbox_run(question, OTHER, "monday"),
    }
    work = group("g", [episode(name, calls) for name, calls in runs.items()])
    judged = await scorer.score(work, time.time() + 60)
    values = {s.episode: s.value for s in judged.scores}
    assert values == {"right": 1.0, "wrong-mail": 0.0, "wrong-day": 0.0, "gave-up": 0.0, "guessed-right": 1.0}


def test_nobody_found_the_mail():
    assert inbox_rule({"e1": '| when is the rent for eva\n| answer #1 {"text": "monday"}'}, "") == {"e1": 0.0}
    assert inbox_rule({"e1": '| answer #1 {"text": 7'}, "") == {"e1": 0.0}
