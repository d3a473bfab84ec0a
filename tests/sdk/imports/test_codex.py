"""Codex's session files."""

from __future__ import annotations

from tests.support.logs import read, replied, taken, written


def line(kind, **payload):
    return {"timestamp": "2026-05-01T10:00:00Z", "type": kind, "payload": payload}


META = line("session_meta", id="x", cwd="/w", base_instructions={"text": "Be good."})
ASKED = line("response_item", type="message", role="user", content=[{"type": "input_text", "text": "hi"}])
CALLS = [line("response_item", type="function_call", call_id=c, name="ls", arguments="{}") for c in "ab"]
TOLD = [line("response_item", type="function_call_output", call_id=c, output="x") for c in "ab"]
SAID = line("response_item", type="message", role="assistant", content=[{"type": "output_text", "text": "done"}])


def count(n):
    return line("event_msg", type="token_count", info={"last_token_usage": {"input_tokens": n, "output_tokens": 1}})


def test_parallel_calls_are_one_reply_with_its_tokens(tmp_path):
    (body,), report = read(tmp_path, META, ASKED, *CALLS, count(9), *TOLD, SAID, count(12))
    assert [m["role"] for m in body["messages"]] == ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert report.tool_calls == 2
    assert [r.get("prompt_tokens") for r in body["replies"]] == [9, 12]


def test_a_compaction_begins_another_talk(tmp_path):
    bodies, _ = read(tmp_path, META, ASKED, SAID, line("compacted", message="so far"), ASKED, SAID)
    assert [m["content"] for m in bodies[1]["messages"]] == ["Be good.", "so far", "hi", "done"]
    assert {b["id"] for b in bodies} == {"codex-x"}


def test_the_first_form_had_bare_items(tmp_path):
    head = {"id": "old", "timestamp": "2025-05-01T10:00:00Z", "instructions": None}
    (body,), _ = read(tmp_path, head, ASKED["payload"], {"record_type": "state"}, SAID["payload"])
    assert body["id"] == "codex-old" and replied(body)[0]["content"] == "done"


def test_each_file_is_a_session(tmp_path):
    rest = (META, ASKED, SAID)
    one, two = (
        written(tmp_path, *rest, name="a.jsonl"),
        written(tmp_path, line("session_meta", id="y"), *rest[1:], name="b.jsonl"),
    )
    assert [b["id"] for b in taken(one, two)[0]] == ["codex-x", "codex-y"]
