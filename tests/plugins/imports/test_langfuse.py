"""Langfuse's traces, observations and scores."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.logs import ASK, END, TOLD, USE, read, replied, whys

from slipstream_imports.forms.traces.langfuse import is_one

ROW = {
    "id": "o",
    "traceId": "t",
    "type": "GENERATION",
    "startTime": "2026-05-01T10:00:00Z",
    "input": [ASK],
    "output": END,
}


def test_its_rows_are_told_from_others():
    assert is_one(ROW) and is_one({"id": "t", "observations": []})
    assert is_one({"trace_id": "t", "name": "s", "value": 1, "data_type": "NUMERIC"})
    assert not is_one({"traceId": "t", "startTimeUnixNano": "1"})
    assert not is_one({"messages": [ASK]})


def test_downloads_of_two_traces_are_two_episodes(tmp_path):
    made = [
        {"trace": {"id": n, "name": f"task {n}", "observations": []}, "observations": [{**ROW, "traceId": n}]}
        for n in "ab"
    ]
    bodies, report = read(tmp_path, *made)
    assert [b["id"] for b in bodies] == ["langfuse-a", "langfuse-b"]
    assert report.clean and report.episodes == 2


def test_without_any_id_each_file_row_is_an_episode_of_its_own(tmp_path):
    bare = {k: v for k, v in ROW.items() if k not in ("id", "traceId")}
    bodies, _ = read(tmp_path, {"trace": {}, "observations": [bare]}, {"observations": [bare]})
    assert len({b["id"] for b in bodies}) == 2
    assert not any("None" in b["id"] for b in bodies)


def test_scores_of_observations_are_kept_beside_the_trace_s(tmp_path):
    scores = [
        {"traceId": "t", "name": "reward", "value": True, "dataType": "BOOLEAN"},
        {"traceId": "t", "name": "tone", "value": "kind", "dataType": "CATEGORICAL"},
        {"traceId": "t", "name": "step", "value": 1, "dataType": "NUMERIC", "observationId": "o"},
        {"traceId": "t", "name": "step", "value": 0, "dataType": "NUMERIC", "observationId": "p"},
        {"traceId": "t", "name": "late", "value": "0.5", "dataType": "NUMERIC"},
    ]
    (body,), report = read(tmp_path, ROW, *scores)
    assert (body["reward"], body["metrics"]) == (1.0, {"step": 1.0, "step.2": 0.0, "late": 0.5})
    assert report.rewards == 4 and ("score tone", "it is a category, not a number") in report.dropped


def test_a_generation_around_another_is_the_same_call(tmp_path):
    around = {**ROW, "id": "outer", "output": "done"}
    (body,), report = read(tmp_path, around, {**ROW, "parentObservationId": "span"}, {"id": "span", "traceId": "t", "type": "SPAN", "parentObservationId": "outer"})  # fmt: skip
    assert report.calls == 1 and replied(body) == [END]
    assert report.dropped["a model call", "it wraps model calls that stand in the log themselves"] == 1


def test_every_choice_is_a_call(tmp_path):
    output = {"choices": [{"message": END}, {"message": {"role": "assistant", "content": "or this"}}]}
    bodies, report = read(tmp_path, {**ROW, "output": output})
    assert report.calls == 2 and len({b["id"] for b in bodies}) == 1
    assert sorted(m["content"] for b in bodies for m in replied(b)) == ["done", "or this"]


def test_durations_and_tokens_come_along(tmp_path):
    (body,), _ = read(
        tmp_path, {**ROW, "endTime": "2026-05-01T10:00:02.500Z", "usageDetails": {"input": 7, "output": 3}}
    )
    assert body["replies"] == [
        {"message": 1, "at": 1777629600.0, "seconds": 2.5, "prompt_tokens": 7, "completion_tokens": 3}
    ]


def test_ids_of_observations_alone_are_said(tmp_path):
    bodies, report = read(tmp_path, {"id": "t", "observations": ["o1"], "scores": ["s1"]})
    assert not bodies and len(report.refused) == 1
    assert any("ids alone" in why for why in whys(report))


def test_examples_in_a_prompt_are_no_calls(tmp_path):
    row = {**ROW, "input": [ASK, USE, TOLD, ASK]}
    (body,), report = read(tmp_path, row)
    assert report.calls == 1 and len(body["messages"]) == 5 and replied(body) == [END]


def test_tables_of_traces_observations_and_scores_in_any_order(tmp_path):
    trace = {"id": "t", "timestamp": "2026-05-01", "bookmarked": False, "public": False, "name": "trip", "user_id": "u"}
    score = {"trace_id": "t", "name": "reward", "value": 0.5, "data_type": "NUMERIC"}
    for rows in ((trace, ROW, score), (score, trace, ROW), (ROW, score, trace)):
        (body,), report = read(tmp_path, *rows)
        assert (body["task"], body["reward"], body["tags"]) == ("trip", 0.5, {"user": "u"})
        assert report.clean


def test_a_score_of_a_session_or_of_a_trace_that_is_away_is_told(tmp_path):
    lost = [{"traceId": t, "name": "s", "value": 1, "dataType": "NUMERIC", "sessionId": "x"} for t in (None, "other")]
    _, report = read(tmp_path, ROW, *lost)
    assert not report.refused and report.dropped == {("score s", "it names no trace that is in these files"): 2}


VERCEL = [
    {"toolCallType": "function", "toolCallId": "c1", "toolName": "w", "args": '{"city": "Oslo"}'},
    {"type": "tool-call", "toolCallId": "c1", "toolName": "w", "input": {"city": "Oslo"}},
    {"toolCallId": "c1", "toolName": "w", "input": '{"city": "Oslo"}'},
    {"id": "c1", "type": "function", "function": {"name": "w", "arguments": '{"city": "Oslo"}'}},
    {"id": "c1", "type": "function", "name": "w", "arguments": '{"city": "Oslo"}', "index": "0"},
]


@pytest.mark.parametrize("call", VERCEL)
@pytest.mark.parametrize(
    "frame",
    [
        lambda c: [c], lambda c: c, lambda c: json.dumps([c]), lambda c: {"toolCalls": [c]},
        lambda c: {"text": "", "toolCalls": json.dumps([c])}, lambda c: {"content": [c]},
        lambda c: [{"role": "assistant", "content": [c]}],
    ],
)  # fmt: skip
def test_a_tool_call_is_one_however_it_is_framed(tmp_path, call, frame):
    seen = {"id": "o", "traceId": "t", "type": "GENERATION", "startTime": "2026-11-01T10:00:00Z", "model": "m"}
    seen |= {"input": json.dumps([{"role": "user", "content": [{"type": "text", "text": "q"}]}]), "output": frame(call)}
    (body,), report = read(tmp_path, {"id": "t", "name": "x", "observations": [seen], "scores": []})
    reply = body["messages"][body["replies"][0]["message"]]
    (made,) = reply["tool_calls"]
    assert (made["id"], made["function"]["name"]) == ("c1", "w") and not reply["content"]
    assert json.loads(made["function"]["arguments"]) == {"city": "Oslo"} and report.clean


def test_an_answer_that_is_json_stays_a_text(tmp_path):
    for text in ('[{"name": "w"}]', '{"name": "w", "arguments": "none"}', '[{"toolName": "w"}]'):
        seen: dict[str, Any] = {"id": "o", "traceId": "t", "type": "GENERATION", "startTime": "2026-11-01T10:00:00Z"}
        seen |= {"input": [{"role": "user", "content": "q"}], "output": text}
        (body,), _ = read(tmp_path, {"id": "t", "name": "x", "observations": [seen], "scores": []})
        assert body["messages"][1] == {"role": "assistant", "content": text}
