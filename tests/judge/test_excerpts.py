from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.groups import calls_tool, result, run, said

from slipstream_judge.text.bare_groups import make_episode
from slipstream_judge.text.excerpts import EXCERPT_LEVELS, RESULT_LEVELS, Shortening, estimate, fit, force, quoted, show
from slipstream_judge.text.transcript import of_episode


def read(calls):
    return of_episode(make_episode("e", None, calls))


def long_run(n, size=3000):
    """``n`` tool calls with long results."""
    messages = [said("user", "task")]
    for i in range(n):
        messages += [calls_tool(f"c{i}", "f", f'{{"i": {i}}}'), result(f"c{i}", f"begin{i} " + "x" * size + f" end{i}")]
    return read([{"messages": messages, "reply": [said("assistant", "done")]}])


def test_the_shared_beginning_stands_once():
    shown = show([read(run(q)) for q in (0.1, 0.2, 0.3)])
    assert shown.shared.count("What is the capital?") == 1
    assert "Tools that were offered:" in shown.shared
    assert shown.episodes == [f"[5] assistant\n| QUALITY {q}" for q in (0.1, 0.2, 0.3)]


def test_a_run_that_ends_within_the_shared_beginning_says_so():
    whole = run(0.5)
    assert show([read(whole), read(whole[:1])]).episodes[1] == "(nothing beyond the shared beginning)"
    assert show([read([])]).episodes == ["(nothing was recorded)"]


def test_branches_say_where_they_leave():
    t = read([{"messages": [said("user", "task")], "reply": [said("assistant", "one"), said("assistant", "two")]}])
    text = show([t]).episodes[0]
    assert (
        "-- branch, from call 0, leaves after step 1: another reply that was sampled for the same request\n[3] assistant\n| two"
        in text
    )


def test_tools_that_only_one_run_had():
    with_tool = read([{"messages": [said("user", "u")], "reply": [], "tools": [{"name": "only"}]}])
    shown = show([with_tool, read([{"messages": [said("user", "v")], "reply": []}])])
    assert "Tools that only this one had:\n| only" in shown.episodes[0]
    assert "only" not in shown.episodes[1]


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(blacklist_categories=("Cs",)), max_size=80))  # type: ignore[arg-type]
def test_no_text_of_a_transcript_can_make_a_line_of_its_own(text):
    shown = show(
        [
            read(
                [
                    {
                        "messages": [said("user", text), said("user", "u")],
                        "reply": [{"role": "assistant", "content": text, "reasoning": text}],
                    }
                ]
            )
        ]
    )
    for line in shown.episodes[0].splitlines():
        assert line.startswith(("| ", "~ ")) or re.fullmatch(r"\[\d+\] [a-z ]+", line)


def test_quoted_knows_every_line_end():
    assert quoted("a\nb\rc\u2028d\x85e\x0bf") == "| a\n| b\n| c\n| d\n| e\n| f"
    assert quoted("") == "| "


def test_tool_results_are_shortened_first_and_it_is_said():
    t = long_run(4)
    shown = fit([t], 1500)
    assert shown is not None and shown.tokens <= 1500
    assert shown.cut.steps is None
    text = shown.episodes[0]
    said_it = re.findall(
        r"^\(… (\d+) characters of this tool result were left out to shorten it …\)$", text, re.MULTILINE
    )
    assert len(said_it) == 4 and int(said_it[0]) > 1000
    assert "begin0" in text and "end3" in text and "| done" in text


def test_nothing_is_shortened_that_fits():
    t = long_run(2, size=100)
    assert fit([t], 10_000).cut == Shortening()


def test_fit_says_no_and_force_finds_a_way():
    t = read(
        [
            {
                "messages": [said("user", "y" * 5000)]
                + [said("assistant" if i % 2 else "user", f"step {i} " + "z" * 400) for i in range(100)],
                "reply": [],
            }
        ]
    )
    assert fit([t], 1000, RESULT_LEVELS) is None
    shown = force([t], 1000)
    assert shown.tokens <= 1000
    assert "steps were left out to shorten this" in shown.episodes[0]
    assert force([t, long_run(3)], 10).cut == EXCERPT_LEVELS[-1]


def test_estimate_is_careful():
    assert estimate("") == 0
    assert estimate("word " * 64) == 100
    assert estimate("漢" * 10) == 10
