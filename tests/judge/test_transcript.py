from __future__ import annotations

from tests.support.groups import TOOLS, calls_tool, result, run, said

from slipstream_judge.text.bare_groups import make_episode
from slipstream_judge.text.transcript import (
    OTHER_CHOICE_TEXT,
    REPEATED_REQUEST_TEXT,
    REWRITTEN_HISTORY_TEXT,
    SEPARATE_CONVERSATION_TEXT,
    SUB_AGENT_TEXT,
    common_prefix,
    common_tools,
    of_episode,
)


def read(calls):
    return of_episode(make_episode("e", None, calls))


def texts(branch):
    return [n.step.text for n in branch.nodes]


S, U = said("system", "sys"), said("user", "task")


def test_a_conversation_is_one_line_of_steps():
    t = read(run(0.5))
    assert len(t.branches) == 1
    assert [n.step.kind for n in t.main] == [
        "system",
        "user",
        "assistant calls tool",
        "tool result of call #1",
        "assistant",
    ]
    assert [n.number for n in t.main] == [1, 2, 3, 4, 5]
    assert t.tools == ['search {"type": "object"}: Look.']


def test_a_resent_reply_may_differ_in_looks():
    first = {"messages": [U], "reply": [{"role": "assistant", "content": "Yes.\n", "reasoning_content": "hm"}]}
    second = {"messages": [U, said("assistant", "Yes."), said("user", "more")], "reply": [said("assistant", "ok")]}
    t = read([first, second])
    assert len(t.branches) == 1
    assert t.main[1].step.aside == "hm"


def test_a_sub_agent_is_a_branch_of_its_own_and_the_main_line_goes_on():
    ask = calls_tool("a", "delegate", "{}")
    calls = [
        {"messages": [S, U], "reply": [ask]},
        {
            "messages": [said("system", "you are the helper"), said("user", "sub task")],
            "reply": [said("assistant", "sub answer")],
        },
        {"messages": [S, U, ask, result("a", "sub answer")], "reply": [said("assistant", "done")]},
    ]
    t = read(calls)
    assert texts(t.branches[0]) == ["sys", "task", "delegate #1 {}", "sub answer", "done"]
    assert (t.branches[1].why, t.branches[1].source, t.branches[1].call) == (SEPARATE_CONVERSATION_TEXT, 0, 1)
    assert texts(t.branches[1]) == ["you are the helper", "sub task", "sub answer"]


def test_a_sub_agent_under_the_same_system_prompt():
    t = read(
        [
            {"messages": [S, U], "reply": [said("assistant", "a")]},
            {"messages": [S, said("user", "other")], "reply": [said("assistant", "b")]},
        ]
    )
    assert (t.branches[1].why, t.branches[1].source) == (SUB_AGENT_TEXT, 1)


def test_a_compacted_history_is_a_branch():
    talk = [S, U, said("assistant", "a1"), said("user", "u2")]
    calls = [
        {"messages": [S, U], "reply": [said("assistant", "a1")]},
        {"messages": talk, "reply": [said("assistant", "a2")]},
        {"messages": [S, U, said("user", "Summary of what was: a1, a2. Go on.")], "reply": [said("assistant", "a3")]},
    ]
    t = read(calls)
    assert texts(t.branches[0]) == ["sys", "task", "a1", "u2", "a2"]
    assert (t.branches[1].why, t.branches[1].source) == (REWRITTEN_HISTORY_TEXT, 2)
    assert texts(t.branches[1]) == ["Summary of what was: a1, a2. Go on.", "a3"]


def test_retries_and_choices():
    t = read(
        [
            {"messages": [U], "reply": [said("assistant", "one"), said("assistant", "two")]},
            {"messages": [U], "reply": [said("assistant", "three")]},
        ]
    )
    assert [(b.why, b.source, texts(b)[-1]) for b in t.branches] == [
        ("", 0, "one"),
        (OTHER_CHOICE_TEXT, 1, "two"),
        (REPEATED_REQUEST_TEXT, 1, "three"),
    ]


def test_superseded_calls_are_left_out():
    t = read(
        [
            {"messages": [U], "reply": [said("assistant", "lost")], "outcome": "superseded"},
            {"messages": [U], "reply": [said("assistant", "kept")]},
        ]
    )
    assert texts(t.branches[0]) == ["task", "kept"]
    assert len(t.branches) == 1


def test_growing_prompts_of_the_completions_format_are_one_line():
    def call(prompt, reply):
        return {
            "dialect": "completions",
            "messages": [{"role": "user", "content": prompt}],
            "reply": [{"role": "assistant", "content": reply}],
        }

    t = read(
        [call("Q: a\n", "A: b\n"), call("Q: a\nA: b\nQ: c\n", "A: d\n"), call("Q: a\nA: b\nQ: c\nA: d\nQ: e\n", "A: f")]
    )
    assert len(t.branches) == 1
    assert [x.strip() for x in texts(t.branches[0])] == ["Q: a", "A: b", "Q: c", "A: d", "Q: e", "A: f"]


def test_digest_is_of_the_content_not_of_ids():
    assert read(run(0.5, id="p")).digest == read(run(0.5, id="q")).digest
    assert read(run(0.5)).digest != read(run(0.6)).digest
    reasoned = [
        {"messages": [U], "reply": [{"role": "assistant", "content": "x", "reasoning": r}]} for r in ("one", "two")
    ]
    assert read(reasoned[:1]).digest != read(reasoned[1:]).digest


def test_the_common_prefix_counts_equal_steps_of_the_main_lines():
    runs = [read(run(q)) for q in (0.1, 0.2)]
    assert common_prefix(runs) == 4
    assert common_prefix(runs[:1]) == 0
    assert common_prefix([runs[0], read([{"messages": [said("user", "else")], "reply": []}])]) == 0
    assert common_prefix([runs[0], read([])]) == 0
    assert common_tools(runs) == runs[0].tools
    assert common_tools([]) == []


def test_a_run_that_is_the_beginning_of_another():
    whole = run(0.5)
    assert common_prefix([read(whole), read(whole[:1])]) == 3


def test_an_episode_without_calls():
    t = read([])
    assert t.main == [] and t.branches == []
    assert t.digest == read([]).digest
    assert TOOLS
