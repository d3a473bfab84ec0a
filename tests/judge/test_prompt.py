from __future__ import annotations

import json

from tests.support.ruled_judge import understand

from slipstream_judge.text.excerpts import Shortening, Shown
from slipstream_judge.text.prompt import build, schema_of

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
    monkeypatch.setattr("slipstream_judge.text.prompt.secrets.token_hex", lambda n: next(drawn))
    prompt = build(Shown("", ["| DATA-END-dead"], 1, Shortening()), ["e1"], "r", "absolute")
    assert "DATA-END-beef" in prompt.messages[0]["content"]
    assert "dead" not in prompt.messages[0]["content"]


def test_window_asks_for_the_new_run_only():
    prompt = build(SHOWN, ["e1", "e2"], "r", "window", {"e1": 0.25})
    assert prompt.ids == ["e2"]
    assert "e1 = 0.25" in understand(prompt.messages).outside
    assert prompt.schema["required"] == ["e2"] == [*prompt.schema["properties"]] and prompt.others == ["e1"]


def test_asking_again_does_not_repeat_the_bad_answer():
    prompt = build(SHOWN, ["e1", "e2"], "r", "group")
    again = prompt.again(["id e1 was missing"])
    assert len(again) == 2 and again[0] == prompt.messages[0]
    assert "id e1 was missing" in understand(again).outside.splitlines()[-1]


def test_schema_is_strict():
    schema = schema_of(["e2", "e1"])
    assert [*schema["properties"]] == schema["required"] == ["e2", "e1"] and schema["additionalProperties"] is False
    item = schema["properties"]["e1"]
    assert item["additionalProperties"] is False and set(item["required"]) == set(item["properties"])
