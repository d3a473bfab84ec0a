"""Claude Code's session files."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
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


def used(ident, call, parent):
    block = [{"type": "tool_use", "id": call, "name": "ls", "input": {}}]
    return entry("assistant", ident, parent, block, message={"id": "m1"})


def answered(ident, call, parent):
    return entry("user", ident, parent, [{"type": "tool_result", "tool_use_id": call, "content": call.upper()}])


def said(ident, parent, text, **more):
    return entry("assistant", ident, parent, [{"type": "text", "text": text}], message={"id": f"m-{ident}"}, **more)


# two calls side by side: parents of the second call's block, of both answers, and of what follows
SHAPES = [
    ("u1", "u1", "u2", "r2"),
    ("u1", "u1", "u2", "r1"),
    ("u1", "u2", "r1", "r2"),
    ("r1", "u1", "u2", "r2"),
    ("u1", "u2", "u2", "r1"),
    ("u1", "u2", "u2", "r2"),
]


@pytest.mark.parametrize("parents", SHAPES)
@pytest.mark.parametrize("order", [("r1", "r2"), ("r2", "r1")])
def test_answers_of_parallel_calls_stand_behind_their_reply(tmp_path, parents, order):
    second, first_answer, second_answer, last = parents
    made = {"r1": answered("r1", "a", first_answer), "r2": answered("r2", "b", second_answer)}
    rows = [ASKED, used("u1", "a", "1"), used("u2", "b", second), *(made[n] for n in order), said("z", last, "done")]
    (body,), report = read(tmp_path, *rows)
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [m.get("content") for m in body["messages"][2:]] == ["A", "B", "done"]
    assert (report.calls, report.tool_calls, report.clean, report.side_branches) == (2, 2, True, 0)


def test_each_call_of_a_random_tree_has_what_stood_before_it(tmp_path):
    """Whatever hangs where: a reply's context is the way to its root, and no reply is counted twice or lost."""
    for choice in itertools.product(range(3), repeat=4):
        rows, nodes = [ASKED], ["1"]
        for n, pick in enumerate(choice):
            parent = nodes[min(pick, len(nodes) - 1)]
            rows += [entry("user", f"q{n}", parent, f"q{n}"), said(f"a{n}", f"q{n}", f"a{n}")]
            nodes.append(f"a{n}")
        ways = {"1": ["hi"]}
        for row in rows[1:]:
            text = row["message"]["content"]
            ways[row["uuid"]] = [*ways[row["parentUuid"]], text if isinstance(text, str) else text[0]["text"]]
        bodies, report = read(tmp_path, *rows)
        found = [[m["content"] for m in b["messages"][: told["message"] + 1]] for b in bodies for told in b["replies"]]
        assert sorted(found) == sorted(ways[f"a{n}"] for n in range(4))
        assert report.calls == 4


def test_what_follows_a_compaction_comes_after_it_with_what_it_kept(tmp_path):
    about = {"preservedMessages": {"uuids": ["4", "5"]}}
    bound: dict[str, Any] = {
        "type": "system",
        "subtype": "compact_boundary",
        "uuid": "b",
        "parentUuid": None,
        "sessionId": "s",
    }
    bound |= {"logicalParentUuid": "5", "compactMetadata": about}
    summary = entry("user", "sum", "b", "so far", isCompactSummary=True)
    asked = entry("user", "q", "sum", "more")
    long = [said(f"z{n}", "q" if n == 0 else f"z{n - 1}", f"z{n}") for n in range(6)]
    bodies, report = read(tmp_path, ASKED, TEXT, USED, TOLD, DONE, bound, summary, asked, *long)
    assert [replied(b)[0]["content"] for b in bodies] == ["I look.", "z0"]  # in the order in which they were said
    assert [m["content"] for m in bodies[1]["messages"][:4]] == ["so far", "x", "done", "more"]
    assert {told["kind"] for b in bodies for told in b["replies"]} == {"main"}
    assert (report.calls, report.side_branches, report.clean) == (8, 0, True)


def test_a_sub_agent_is_no_part_of_the_main_line(tmp_path):
    side = {"isSidechain": True, "agentId": "a1"}
    order = entry("user", "s1", None, "look there", **side)
    found = said("s2", "s1", "it is there", **side)
    one, two = written(tmp_path, ASKED, TEXT, USED, TOLD, DONE), written(tmp_path, order, found, name="agent-a1.jsonl")
    bodies, report = taken(one, two)
    assert [[told["kind"] for told in b["replies"]] for b in bodies] == [["main", "main"], ["subagent"]]
    assert {b["id"] for b in bodies} == {"claude-code-s"} and report.calls == 3 and report.side_branches == 0


def test_side_branches_are_kept_and_counted(tmp_path):
    edited = [entry("user", "6", None, "hi again"), said("7", "6", "hello")]
    left = [entry("user", "8", "5", "never answered"), entry("user", "9", "5", "this one"), said("10", "9", "yes")]
    bodies, report = read(tmp_path, *edited, ASKED, TEXT, USED, TOLD, DONE, *left)
    assert report.calls == 4 and report.side_branches == 2
    assert [why for _, why in report.dropped] == ["no reply of this session follows it"]
    assert "2 on side branches" in report.summary()
    assert [replied(b)[0]["content"] for b in bodies] == ["hello", "I look."]


def test_what_a_fork_copied_is_context(tmp_path):
    copied = [
        {**e, "sessionId": "f", "forkedFrom": {"sessionId": "s", "messageUuid": e["uuid"]}} for e in (ASKED, TEXT)
    ]
    new = [{**e, "sessionId": "f"} for e in (entry("user", "q", "2", "more"), said("z", "q", "done"))]
    one, two = written(tmp_path, ASKED, TEXT), written(tmp_path, *copied, *new, name="b.jsonl")
    bodies, report = taken(one, two)
    assert [[m["content"] for m in replied(b)] for b in bodies] == [["I look."], ["done"]] and report.clean
    assert "it counts where its own file is imported" in taken(two)[1].lines()[0]


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("anew", ["", "n"])
def test_what_a_resumed_session_repeats_is_context(tmp_path, back, anew):
    """In a file of its own, under another session's id; the lines' ids may be new ones, and the provider's are not."""
    first = [
        {**e, "timestamp": f"2026-05-01T10:00:0{n}Z"} for n, e in enumerate((ASKED, said("a", ASKED["uuid"], "one")))
    ]
    copied = [{**e, "uuid": e["uuid"] + anew, "parentUuid": e["parentUuid"] and e["parentUuid"] + anew} for e in first]
    more = [entry("user", "q", "a" + anew, "more"), said("z", "q", "two")]
    later = [{**e, "timestamp": "2026-05-02T10:00:00Z"} for e in more]
    paths = [
        written(tmp_path, *first),
        written(tmp_path, *({**e, "sessionId": "f"} for e in (*copied, *later)), name="b.jsonl"),
    ]
    bodies, report = taken(*(paths[::-1] if back else paths))
    found = {b["id"]: [m["content"] for m in replied(b)] for b in bodies}
    assert found == {"claude-code-s": ["one"], "claude-code-f": ["two"]} and report.clean


def test_a_missing_parent_is_told(tmp_path):
    _, report = read(tmp_path, ASKED, TEXT, said("z", "nowhere", "done"))
    assert [what for what, _ in report.dropped] == ["an entry's context"]
