"""Codex's session files."""

from __future__ import annotations

from pathlib import Path

import pytest
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


def said(text, at="10:00:00", role="assistant"):
    kind = "output_text" if role == "assistant" else "input_text"
    told = line("response_item", type="message", role=role, content=[{"type": kind, "text": text}])
    return {**told, "timestamp": f"2026-05-01T{at}Z"}


def meta(ident, at="10:00:00", **more):
    told = line("session_meta", id=ident, cwd="/w", base_instructions={"text": "Be good."}, **more)
    return {**told, "timestamp": f"2026-05-01T{at}Z"}


def test_the_system_prompt_stays_after_a_compaction(tmp_path):
    history = [said("so far", role="user")["payload"]]
    rows = [META, ASKED, SAID, line("compacted", message="", replacement_history=history), ASKED, SAID]
    bodies, _ = read(tmp_path, *rows)
    assert [m["content"] for m in bodies[1]["messages"]] == ["Be good.", "so far", "hi", "done"]
    assert {told["kind"] for b in bodies for told in b["replies"]} == {"main"}


def fork(folder: Path, times: tuple[str, str]):
    parent = [meta("p"), said("task", role="user"), said("first"), said("task 2", role="user"), said("second")]
    copied = [{**row, "timestamp": f"2026-05-01T{times[0]}Z"} for row in parent[:3]]
    child = [
        meta("c", "11:00:00", forked_from_id="p"), *copied,
        said("order", times[1], role="user"), said("found", "11:00:09"),
    ]  # fmt: skip
    return written(folder, *parent, name="p.jsonl"), written(folder, *child, name="c.jsonl")


@pytest.mark.parametrize("times", [("10:00:00", "11:00:05"), ("11:00:00.1", "11:00:05"), ("11:00:08", "11:00:09")])
@pytest.mark.parametrize("back", [False, True])
def test_what_a_fork_repeats_is_context(tmp_path, times, back):
    """Whichever file comes first, and whatever times the copied lines have."""
    paths = fork(tmp_path, times)
    bodies, report = taken(*(paths[::-1] if back else paths))
    by_id = {b["id"]: b for b in bodies}
    assert [m["content"] for m in replied(by_id["codex-p"])] == ["first", "second"]
    assert [m["content"] for m in replied(by_id["codex-c"])] == ["found"]
    assert [m["content"] for m in by_id["codex-c"]["messages"]] == ["Be good.", "task", "first", "order", "found"]
    assert by_id["codex-c"]["tags"]["forked_from"] == "p" and by_id["codex-c"]["tags"]["parent"] == "codex-p"
    assert report.calls == 3 and report.clean


@pytest.mark.parametrize("times", [("10:00:00", "11:00:05"), ("11:00:00.1", "11:00:05")])
def test_a_fork_without_its_parents_file(tmp_path, times):
    (body,), report = taken(fork(tmp_path, times)[1])
    assert [m["content"] for m in replied(body)] == ["found"]
    assert "it is session p's: it counts where its own file is imported" in report.lines()[0]


def test_a_forks_own_time_tells_its_begin_where_its_first_line_is_as_old_as_the_parents(tmp_path):
    rows = [
        meta("c", "09:59:59", forked_from_id="p", timestamp="2026-05-01T11:00:00Z"),
        said("task", "10:00:00", "user"),
    ]
    (body,), report = read(
        tmp_path, *rows, said("first", "10:00:09"), said("order", "11:00:05", "user"), said("found", "11:00:09")
    )
    assert [m["content"] for m in replied(body)] == ["found"]
    assert "it is session p's" in report.lines()[0]


def test_a_sub_agent_that_copies_nothing_is_its_own(tmp_path):
    source = {"subagent": {"thread_spawn": {"parent_thread_id": "p", "depth": 1}}}
    (body,), report = read(tmp_path, meta("c", source=source), said("order", "10:00:00", "user"), said("r", "10:00:03"))
    assert [m["content"] for m in replied(body)] == ["r"] and body["tags"]["parent"] == "codex-p" and report.clean


@pytest.mark.parametrize(("turns", "left"), [(0, ["a0", "a1", "a2"]), (1, ["a0", "a1"]), (2, ["a0"]), (3, []), (9, [])])
def test_rolled_back_turns_are_taken_out_and_counted(tmp_path, turns, left):
    talk = [row for n in range(3) for row in (said(f"q{n}", role="user"), said("<environment_context>", role="user"), said(f"a{n}"))]  # fmt: skip
    back = line("event_msg", type="thread_rolled_back", num_turns=turns)
    (body,), report = read(tmp_path, META, *talk, back, said("again", role="user"), said("end"))
    assert [m["content"] for m in replied(body)] == [*left, "end"]
    assert report.side_branches == 3 - len(left)
    assert not any(f"a{n}" == m["content"] for n in range(len(left), 3) for m in body["messages"])
    if left != ["a0", "a1", "a2"]:
        assert "the user rolled its turn back" in " ".join(report.lines())
