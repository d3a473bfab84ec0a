"""Claude Code's session files."""

from __future__ import annotations

from tests.support.logs import read, replied, taken, written


def entry(kind, ident, parent, content, **more):
    message = {"role": kind, "content": content, **more.pop("message", {})}
    return {"type": kind, "uuid": ident, "parentUuid": parent, "sessionId": "s", "message": message, **more}


ASKED = entry("user", "1", None, "hi")
TEXT = entry("assistant", "2", "1", [{"type": "text", "text": "I look."}], message={"id": "m1"})
USED = entry("assistant", "3", "2", [{"type": "tool_use", "id": "c", "name": "ls", "input": {}}], message={"id": "m1"})
TOLD = entry(
    "user", "4", "3", [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "x"}]}]
)
DONE = entry("assistant", "5", "4", [{"type": "text", "text": "done"}], message={"id": "m2"})


def test_blocks_of_one_reply_are_one_call(tmp_path):
    (body,), report = read(tmp_path, ASKED, TEXT, USED, TOLD, DONE)
    first, last = replied(body)
    assert (first["content"], len(first["tool_calls"]), last["content"]) == ("I look.", 1, "done")
    assert body["messages"][2] == {"role": "tool", "tool_call_id": "c", "content": "x"}
    assert report.calls == 2 and report.clean


def test_an_edited_message_makes_a_branch_and_counts_no_reply_twice(tmp_path):
    again = entry("user", "6", "3", [{"type": "tool_result", "tool_use_id": "c", "content": "y"}])
    end = entry("assistant", "7", "6", [{"type": "text", "text": "other"}], message={"id": "m3"})
    bodies, report = read(tmp_path, ASKED, TEXT, USED, TOLD, DONE, again, end)
    assert len(bodies) == 2 and report.calls == 3 and report.episodes == 1


def test_what_the_program_wrote_is_no_reply(tmp_path):
    fake = entry("assistant", "6", "5", [{"type": "text", "text": "API Error"}], message={"model": "<synthetic>"})
    _, report = read(tmp_path, ASKED, TEXT, USED, TOLD, DONE, fake)
    assert report.calls == 2 and report.dropped.total() == 1


def test_sessions_of_two_files_stay_apart(tmp_path):
    one = written(tmp_path, ASKED, TEXT, name="a.jsonl")
    two = written(tmp_path, *({**e, "sessionId": "z"} for e in (ASKED, TEXT)), name="b.jsonl")
    assert [b["id"] for b in taken(one, two)[0]] == ["claude-code-s", "claude-code-z"]
