"""What models really answer: read where its meaning is certain, refused where it is not, never read wrongly."""

from __future__ import annotations

import contextlib
import json
import time

import pytest
from aiohttp import web
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support.served import Served

from slipstream.settings import JudgeConfig
from slipstream_judge.model.budget import Budget
from slipstream_judge.model.llm import Llm, bounded
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_judge.text.answer import BadAnswer, parse

IDS = ["e2", "e1"]
OTHERS = ["e3"]
WHOLE = '{"e2": {"reason": "r", "score": 0.2}, "e1": {"reason": "r", "score": 0.8}}'
LIST = '{"scores": [{"id": "e1", "reason": "r", "score": 0.8}, {"id": "e2", "reason": "r", "score": 0.2}]}'
DRAFT = LIST.replace("0.8", "0.1")

READABLE = [
    WHOLE,
    LIST,
    LIST.replace('"scores"', '"results"'),
    '{"evaluation": ' + LIST + "}",
    '{"e1": 0.8, "e2": 0.2}',
    '{"scores": {"e1": 0.8, "e2": 0.2}}',
    '{"scores": {"e1": 0.8, "e2": 0.2}, "reasons": {"e1": "good", "e2": "bad"}}',
    '{"analysis": "e2 is worse", "scores": {"e1": 0.8, "e2": 0.2}}',
    '[{"id": "e1", "score": 0.8}, {"id": "e2", "score": 0.2}]',
    '[{"e1": 0.8}, {"e2": 0.2}]',
    '[["e1", 0.8], ["e2", 0.2]]',
    '{"id": "e1", "score": 0.8}\n{"id": "e2", "score": 0.2}',
    '{"id": "e1", "score": 0.8}, {"id": "e2", "score": 0.2}',
    '- e1: {"id": "e1", "score": 0.8}\n- e2: {"id": "e2", "score": 0.2}'.replace("- e1: ", "- ").replace(
        "- e2: ", "- "
    ),
    "\ufeff" + WHOLE,
    WHOLE + "<|im_end|>",
    WHOLE + "<|eot_id|>",
    WHOLE + "</s>",
    WHOLE + "<end_of_turn>\n",
    "```json\n" + WHOLE + "\n```",
    "```\n" + WHOLE + "\n```",
    "```JSON\n" + WHOLE + "\n```\nI compared both runs.",
    "~~~json\n" + WHOLE + "\n~~~",
    "Here is my answer: " + WHOLE,
    "Here you are:\n\n" + LIST + "\n\nLet me know if you want more detail.",
    "**Scores:** " + WHOLE + " I hope that this helps.",
    "Looking at [1] and [2], the first is better.\n" + WHOLE,
    "<think>e1 is better</think>\n" + WHOLE,
    "<think>" + DRAFT + " no, wait</think>" + WHOLE,
    "<thinking>\nhm\n</thinking>\n" + LIST,
    "e1 is better, I think.\n</think>\n\n" + WHOLE,
    "[THINK]" + DRAFT + "[/THINK]" + WHOLE,
    "◁think▷hm◁/think▷" + WHOLE,
    "<reasoning>hm</reasoning>" + WHOLE,
    "<reflection>" + DRAFT + "</reflection>" + WHOLE,
    "<seed:think>" + DRAFT + "</seed:think>" + WHOLE,
    "<|channel>thought\n" + DRAFT + "<channel|>" + WHOLE,
    "<|channel|>analysis<|message|>" + DRAFT + "<|end|><|start|>assistant<|channel|>final<|message|>" + WHOLE,
    WHOLE.replace('"e1"', '"E1"').replace('"e2"', '"E2"'),
    LIST.replace('"e1"', '"Run e1"').replace('"e2"', '"run e2"'),
    LIST.replace('"e1"', '" e1 "'),
    LIST.replace('"e1"', '"RUN-0123abcd e1"'),
    LIST.replace('"id"', '"ID"').replace('"score"', '"Score"'),
    LIST.replace('"id"', '"run_id"'),
    LIST.replace('"id"', '"run"'),
    LIST.replace('"id"', '"trajectory_id"').replace('"e1"', '"run_e1"'),
    json.dumps({"name": "submit", "arguments": LIST}),
    LIST.replace('"score":', '"rating":'),
    LIST.replace('"reason"', '"explanation"'),
    LIST.replace("0.8", '"0.8"'),
    LIST.replace("0.8", '" 0.80 "'),
    LIST.replace("0.8", '".8"'),
    LIST.replace("0.8", '"0,8"'),
    LIST.replace("0.8", '"8e-1"'),
    LIST.replace("0.8", '"0.8/1"'),
    LIST.replace("0.8", '"0.8 / 1.0"'),
    LIST.replace("0.8", '"0.8 out of 1"'),
    LIST.replace("0.8", '"80%"').replace("0.2", '"20 %"'),
    LIST.replace("0.8", '"8/10"').replace("0.2", '"2/10"'),
    LIST.replace("0.8", '"80 / 100"').replace("0.2", '"20 / 100"'),
    LIST.replace("}]", "},]"),
    LIST.replace("0.8}", "0.8,}"),
    LIST.replace('"', "'"),
    "{\"scores\": [{'id': \"e1\", 'reason': \"it's good\", 'score': 0.8}, {'id': \"e2\", 'score': 0.2}]}",
    LIST.replace('"r"', '"two\nlines"'),
    LIST.replace('"r"', '"tab\there"'),
    LIST.replace('"r"', '"a } in a { string ] ,}"'),
    LIST.replace('"r"', "null"),
    json.dumps(LIST),
    LIST + "\n" + LIST,
    LIST.replace("}]}", '}, {"id": "e3", "score": 0.5}]}'),
    WHOLE[:-1],
    LIST[:-2],
    LIST.replace('"score": 0.8', '"score": 0.8, "confidence": 1.0'),
    '{"#e1": {"score": 0.8}, "[e2]": {"score": 0.2}}',
    '{"e1_score": 0.8, "e1_reason": "well", "e2_score": 0.2}',
    '{"e1": 0.8, // see "http://x"\n "e2": 0.2}',
    "{“e1”: 0.8, “e2”: 0.2}",
    '{"e1":\u00a00.8, "e2": 0.2}',
]
"""Each says 0.8 of e1 and 0.2 of e2."""

UNREADABLE = [
    "",
    "They are all fine runs, I would say.",
    "e1: 0.8, e2: 0.2 of 10",
    "[]",
    "{}",
    "[" * 100_000,
    "{" * 100_000,
    '{"a":' * 50_000,
    LIST[:40],
    WHOLE[: WHOLE.rindex("8}")],
    "<think>" + LIST,
    "<thinking>I would say " + LIST,
    "<|channel|>analysis<|message|>" + DRAFT,
    "<|start|>assistant<|channel|>analysis<|message|>" + DRAFT,
    "<|channel>thought\n" + DRAFT,
    "[0.8, 0.2]",
    '{"scores": [0.8, 0.2]}',
    '{"scores": ["e1", "e2"]}',
    '{"score": 0.8}',
    '{"scores": [{"id": 1, "score": 0.8}, {"id": 2, "score": 0.2}]}',
    '{"scores": [{"id": "1", "score": 0.8}, {"id": "2", "score": 0.2}]}',
    '{"e1": 0.8}',
    LIST.replace("}]}", '}, {"id": "e9", "score": 0.5}]}'),
    LIST.replace("}]}", '}, {"id": "e1", "score": 0.5}]}'),
    LIST + "\n" + DRAFT,
    '{"e1": 0.8, "e2": 0.2, "e1": 0.3}',
    "{'e1': 0.8, 'e2': 0.2, 'e1': 0.3}",
    LIST.replace("0.8", "8"),
    LIST.replace("0.8", "1.01"),
    LIST.replace("0.8", "-0.01"),
    LIST.replace("0.8", "1e999"),
    LIST.replace("0.8", "1" + "0" * 400),
    LIST.replace("0.8", "NaN"),
    LIST.replace("0.8", '"nan"'),
    LIST.replace("0.8", "true"),
    LIST.replace("0.8", "null"),
    LIST.replace("0.8", '"good"'),
    LIST.replace("0.8", '"0.8 or 0.9"'),
    LIST.replace("0.8", '"0.8-0.9"'),
    LIST.replace("0.8", '"8/0"'),
    LIST.replace("0.8", '"1,000"'),
    LIST.replace("0.8", '"120%"'),
    LIST.replace("0.8", '"8/10"'),
    LIST.replace("0.8", '"80%"'),
    LIST.replace("0.8", '{"value": 0.8}').replace('"score": 0.2', '"score": [0.2]'),
    f"The run wrote '{LIST}', which earns it nothing.",
    f"One run says {LIST}, and I will not obey it.",
    f'It asks me to answer "{LIST}".',
]
"""None has a certain meaning."""


def read(text):
    return {run: grade.score for run, grade in parse(text, IDS, OTHERS).items()}


@pytest.mark.parametrize("text", READABLE)
def test_an_answer_of_certain_meaning_is_read(text):
    assert read(text) == pytest.approx({"e1": 0.8, "e2": 0.2})


LINES = [
    "e1: 0.8\ne2: 0.2",
    "- **Run e1**: 80%\n- **Run e2**: 20%",
    "1. e1 = 8/10\n2. e2 = 2/10",
    "| Run | Score |\n|:---|---:|\n| e1 | 0.8 |\n| e2 | 0.2 |",
]
NO_LINES = [
    "The run wrote:\ne1: 1.0\ne2: 0.0",  # what a sentence quotes
    "e1: 0.8 or 0.9\ne2: 0.2",
    "e1: -0.8\ne2: 0.2",
    "| id | goal | style |\n| e1 | 0.8 | 0.1 |\n| e2 | 0.2 | 0.3 |",
    "e1: 0.5\ne1: 0.8\ne2: 0.2",
    '{"e1": {"score": 0.8, "Score": 0.1}, "e2": 0.2}',
    '{"score_e1": 0.8, "e1": 0.5, "e2": 0.2}',
]


@pytest.mark.parametrize("text", LINES)
def test_a_line_for_each_run_and_nothing_else_is_read(text):
    assert read(text) == pytest.approx({"e1": 0.8, "e2": 0.2})


@pytest.mark.parametrize("text", [*UNREADABLE, *NO_LINES])
def test_an_answer_of_no_certain_meaning_is_refused(text):
    with pytest.raises(BadAnswer):
        read(text)


@pytest.mark.parametrize("text", ["0.7", '"0.7"', '{"score": 0.7}', '{"e1": 0.7}', '[{"id": "e1", "score": "70%"}]'])
def test_one_run_needs_no_id(text):
    assert parse(text, ["e1"])["e1"].score == pytest.approx(0.7)


@pytest.mark.parametrize(
    "text", ["[0.7]", '{"e2": {"score": 0.1}, "e1": {"score": 0.9', '[{"score": 0.7}, {"score": 0.2}]']
)
def test_a_score_without_an_id_is_not_taken_for_the_run_s(text):
    with pytest.raises(BadAnswer):
        parse(text, ["e1"], ["e2"])


DIGITS = "0123456789.e"


@given(st.data())
def test_whatever_is_cut_or_put_around_an_answer_it_is_never_read_wrongly(data):
    text = data.draw(st.sampled_from([t for t in READABLE if not t.startswith("{'")]))
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    around = data.draw(st.tuples(*[st.text("{}[]\",:'`.0<e1 \n\\", max_size=6)] * 2))
    cut, after = text[end - 1 : end], (text[end:] + around[1])[:1] + around[1][:1]
    assume(not (cut in DIGITS and any(c in DIGITS for c in after)))  # another number is another answer
    try:
        found = read(around[0] + text[start:end] + around[1])
    except BadAnswer:
        return
    assert found["e2"] == pytest.approx(0.2) and found["e1"] in (pytest.approx(0.8), pytest.approx(0.1))


def test_problems_repeat_nothing_of_the_answer():
    with pytest.raises(BadAnswer) as caught:
        parse(LIST.replace("e1", "give me 1.0").replace("0.2", '"give me 1.0"'), IDS)
    assert "give" not in " ".join(caught.value.problems)


class Servers:
    """The wire formats of the servers that people run; each takes a model's text as it is."""

    def __init__(self):
        self.text = ""
        self.asked = {}

    def app(self):
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/api/chat", self.ollama)
        app.router.add_post("/api/show", self.shown)
        return app

    async def chat(self, request):
        self.asked = await request.json()
        message = {"role": "assistant", "content": self.text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 20, "total_tokens": 23}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": self.asked["model"]}
        return web.json_response({**head, "choices": [choice], "usage": usage})

    async def ollama(self, request):
        self.asked = await request.json()
        head = {"model": self.asked["model"], "created_at": "2026-01-01T00:00:00Z", "done": True, "done_reason": "stop"}
        counts = {"prompt_eval_count": 3, "eval_count": 20, "total_duration": 1, "load_duration": 1}
        return web.json_response({**head, **counts, "message": {"role": "assistant", "content": self.text}})

    async def shown(self, request):
        return web.json_response({"template": "{{ .System }}", "model_info": {}})


@pytest.mark.parametrize("model", ["hosted_vllm/m", "ollama_chat/m", "lm_studio/m", "llamafile/m", "openai/m"])
async def test_each_server_is_asked_for_a_schema_and_its_answers_are_read(model):
    servers, metrics = Servers(), JudgeMetrics()
    schema = {"type": "object", "properties": {"e1": {"type": "number"}}, "required": ["e1"]}
    right = 0
    with Served(servers.app()) as url:
        base = url if model.startswith("ollama") else f"{url}/v1"
        judge = JudgeConfig(model=model, api_base=base)
        llm = Llm(judge, Budget(judge, metrics), metrics)
        for text in READABLE:
            servers.text = text
            answer = await llm.ask([{"role": "user", "content": "q"}], schema, time.time() + 60)
            right += read(answer.text) == pytest.approx({"e1": 0.8, "e2": 0.2})
        asked = servers.asked.get("format") or servers.asked["response_format"]["json_schema"]["schema"]
        assert asked == bounded(schema)
    assert right >= 0.95 * len(READABLE)


@pytest.mark.parametrize(
    "text",
    [
        '{"run' + "_" * 100_000 + '": 1}',
        '["run' + "-_" * 50_000 + '", 1]',
        "{" + "/*" * 50_000 + "}",
        '{"' + '\\"' * 50_000 + "}",
        "{'" + "\\'" * 50_000 + "}",
        "e1" + ":" * 100_000,
        "|" * 100_000 + "x",
        "{" + "," + " " * 100_000 + "x}",
        " " * 100_000 + "5x",
        "\n".join(["|" * 190 + "x"] * 500),
        "\n".join(["e1" + ":" * 190] * 500),
        "{" + ", ".join(f'"run{"_" * 180}{n}": 1' for n in range(500)) + "}",
    ],
    ids=lambda text: text[:12],
)
def test_no_answer_takes_long_to_read(text):
    began = time.process_time()
    with contextlib.suppress(BadAnswer):
        parse(text, ["e1", "e2"])
    assert time.process_time() - began < 2.0
