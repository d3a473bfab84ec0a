from __future__ import annotations

import json

import pytest
from tests.support.ruled_judge import understand

from slipstream_judge.excerpts import Shortening, Shown
from slipstream_judge.prompt import BadAnswer, build, parse, schema_of

SHOWN = Shown("[1] user\n| task", ["[2] assistant\n| one", "[2] assistant\n| two"], 10, Shortening())


def answer(*scores, **more):
    return json.dumps({"scores": [{"id": i, "reason": "r", "score": s} for i, s in scores]} | more)


def test_data_stands_between_lines_with_a_nonce_and_the_last_word_is_ours():
    prompt = build(SHOWN, ["e2", "e1"], "The rubric.", "group")
    system, user = (m["content"] for m in prompt.messages)
    read = understand(prompt.messages)
    assert read.runs == {"e2": SHOWN.episodes[0], "e1": SHOWN.episodes[1]}
    assert read.shared == SHOWN.shared
    assert read.asked == ["e2", "e1"] == prompt.ids
    assert "The rubric." in read.outside and "task" not in read.outside.split("The rubric.")[1].split("How to read")[0]
    assert user.rstrip().endswith("e2, e1.")
    assert "never an instruction" in system


def test_each_prompt_has_its_own_nonce():
    first, second = (build(SHOWN, ["e1", "e2"], "r", "group").messages[0]["content"] for _ in range(2))
    assert first != second


def test_a_nonce_that_stands_in_a_transcript_is_not_used(monkeypatch):
    drawn = iter(["dead", "beef", "beef"])
    monkeypatch.setattr("slipstream_judge.prompt.secrets.token_hex", lambda n: next(drawn))
    prompt = build(Shown("", ["| DATA-END-dead"], 1, Shortening()), ["e1"], "r", "absolute")
    assert "DATA-END-beef" in prompt.messages[0]["content"]
    assert "dead" not in prompt.messages[0]["content"]


def test_window_asks_for_the_new_run_only():
    prompt = build(SHOWN, ["e1", "e2"], "r", "window", {"e1": 0.25})
    assert prompt.ids == ["e2"]
    assert "e1 = 0.25" in understand(prompt.messages).outside
    assert prompt.schema["properties"]["scores"]["items"]["properties"]["id"]["enum"] == ["e2"]


def test_asking_again_does_not_repeat_the_bad_answer():
    prompt = build(SHOWN, ["e1", "e2"], "r", "group")
    again = prompt.again(["id e1 was missing"])
    assert len(again) == 2 and again[0] == prompt.messages[0]
    assert "id e1 was missing" in understand(again).outside.splitlines()[-1]


def test_schema_is_strict():
    item = schema_of(["e1"])["properties"]["scores"]["items"]
    assert item["additionalProperties"] is False and set(item["required"]) == set(item["properties"])


def test_scores_are_matched_by_id():
    found = parse(answer(("e2", 0.2), ("e1", 1)), ["e1", "e2"])
    assert {k: v.score for k, v in found.items()} == {"e1": 1.0, "e2": 0.2}
    assert found["e1"].reason == "r"


@pytest.mark.parametrize(
    "wrap", ["{}", "```json\n{}\n```", "```\n{}\n```", '<think>{{"scores": 1}} hm</think>\n{}', "\n {} \n"]
)
def test_thoughts_and_fences_are_forgiven(wrap):
    assert parse(wrap.format(answer(("e1", 0.5))), ["e1"])["e1"].score == 0.5


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "whole JSON"),
        (answer(("e1", 0.5), ("e2", 0.5))[:30], "whole JSON"),
        ("Here you are: " + answer(("e1", 0.5), ("e2", 0.5)), "whole JSON"),
        ("[]", "no list"),
        ('{"scores": {"e1": 0.5, "e2": 0.1}}', "no list"),
        ("[" * 100_000, "whole JSON"),
        (answer(("e1", 0.5)), "id e2 was missing"),
        (answer(("e1", 0.5), ("e2", 0.5), ("e3", 0.5)), "entry 3 has an id that was not asked for"),
        (answer(("e1", 0.5), ("e2", 0.5), ("e1", 0.5)), "id e1 stood more than once"),
        (answer(("e1", 1.01), ("e2", 0.5)), "id e1 has a score outside 0 to 1"),
        (answer(("e1", -0.01), ("e2", 0.5)), "outside"),
        (answer(("e1", 10**400), ("e2", 0.5)), "outside"),
        (answer(("e1", 0.5), ("e2", 0.5)).replace("0.5", "1e999", 1), "outside"),
        (answer(("e1", True), ("e2", 0.5)), "no number"),
        (answer(("e1", "0.5"), ("e2", 0.5)), "no number"),
        (answer(("e1", None), ("e2", 0.5)), "no number"),
        (answer(("e1", 0.5), ("e2", 0.5)).replace("0.5", "NaN", 1), "whole JSON"),
        (answer(("e1", 0.5), ("e2", 0.5)).replace('"score": 0.5', '"score": 0.5, "score": 1', 1), "whole JSON"),
        ('{"scores": ["e1", "e2"]}', "entry 1"),
    ],
)
def test_what_is_wrong_is_said(text, problem):
    with pytest.raises(BadAnswer, match=problem):
        parse(text, ["e1", "e2"])


def test_problems_repeat_nothing_of_the_answer():
    with pytest.raises(BadAnswer) as caught:
        parse(answer(("give me 1.0", "give me 1.0"), ("e1", "give me 1.0")), ["e1"])
    assert "give" not in " ".join(caught.value.problems)
