"""Transcripts → the text of the data block, and shortening it to fit.

Shortening goes in levels (``LEVELS``): tool results first, down to 250 characters each; only then, where even the smallest part of a split
group is too long, other steps, and at last steps from the middle. Every cut is said where it was made, in a line that a transcript cannot
write itself (its own lines all begin with ``| `` or ``~ ``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from slipstream_judge.steps import Step
from slipstream_judge.transcript import Node, Transcript, common_prefix, common_tools

CHARS_PER_TOKEN = 3.2
"""Of ASCII text with JSON in it; any other character counts as a token. On the safe side for the tokenizers in use."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Longest tool result, longest other step (characters), most steps of an episode; None: no limit."""

    results: int | None = None
    steps: int | None = None
    count: int | None = None


RESULT_LEVELS = (Cut(), *(Cut(n) for n in (8000, 4000, 2000, 1000, 500, 250)))
LEVELS = (
    *RESULT_LEVELS,
    *(Cut(250, n) for n in (4000, 2000, 1000, 500, 250)),
    *(Cut(250, 250, n) for n in (60, 30, 16, 8, 4)),
    Cut(100, 100, 4),
)


def estimate(text: str) -> int:
    """Tokens, estimated without a tokenizer (the judge's is not known)."""
    plain = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
    return ceil(plain / CHARS_PER_TOKEN) + len(text) - plain


def quoted(text: str, mark: str = "| ") -> str:
    return "\n".join(mark + line for line in text.splitlines()) or mark


def shortened(text: str, limit: int | None, what: str) -> str:
    """Quoted text; beyond ``limit`` characters its middle is left out, and that is said."""
    if limit is None or len(text) <= limit + 60:
        return quoted(text)
    head = limit * 2 // 3
    tail = limit - head
    said = f"(… {len(text) - limit} characters of this {what} were left out to shorten it …)"
    return f"{quoted(text[:head])}\n{said}\n{quoted(text[-tail:])}"


def show_step(step: Step, number: int, cut: Cut) -> str:
    lines = [f"[{number}] {step.kind}"]
    if step.aside:
        aside = step.aside if cut.steps is None else step.aside[: cut.steps]
        lines.append(quoted(aside, "~ "))
    if step.shortenable:
        lines.append(shortened(step.text, cut.results, "tool result"))
    elif step.text:
        lines.append(shortened(step.text, cut.steps, "step"))
    return "\n".join(lines)


def _nodes(nodes: Sequence[Node], cut: Cut) -> list[str]:
    if cut.count is None or len(nodes) <= cut.count:
        return [show_step(n.step, n.number, cut) for n in nodes]
    head = cut.count // 2
    shown = [show_step(n.step, n.number, cut) for n in (*nodes[:head], *nodes[-(cut.count - head) :])]
    shown.insert(head, f"(… {len(nodes) - cut.count} steps were left out to shorten this …)")
    return shown


def show_episode(transcript: Transcript, skip: int, tools: Sequence[str], cut: Cut) -> str:
    """What is not shared: the main line after its first ``skip`` steps, then each branch."""
    lines: list[str] = []
    own = [t for t in transcript.tools if t not in tools]
    if own:
        lines.append("Tools that only this one had:\n" + quoted("\n".join(own)))
    if not transcript.branches:
        return "\n".join([*lines, "(nothing was recorded)"])
    lines += _nodes(transcript.main[skip:], cut) or ["(nothing beyond the shared beginning)"]
    for branch in transcript.branches[1:]:
        where = f"leaves after step {branch.source}" if branch.source else "begins on its own"
        lines.append(f"-- branch, from call {branch.call}, {where}: {branch.why}")
        lines += _nodes(branch.nodes, cut)
        lines.append("-- end of the branch")
    return "\n".join(lines)


@dataclass(slots=True)
class Shown:
    """The pieces of one prompt's data block: the shared beginning, and a text for each episode."""

    shared: str
    episodes: list[str]
    tokens: int
    cut: Cut


def show(transcripts: Sequence[Transcript], cut: Cut = Cut()) -> Shown:
    skip = common_prefix(transcripts)
    tools = common_tools(transcripts)
    lines = []
    if tools:
        lines.append("Tools that were offered:\n" + quoted("\n".join(tools)))
    if skip:
        lines += [show_step(n.step, n.number, cut) for n in transcripts[0].main[:skip]]
    shared = "\n".join(lines)
    episodes = [show_episode(t, skip, tools, cut) for t in transcripts]
    return Shown(shared, episodes, estimate(shared) + sum(map(estimate, episodes)), cut)


def fit(transcripts: Sequence[Transcript], budget: int, levels: Sequence[Cut] = LEVELS) -> Shown | None:
    """At the least shortening that fits ``budget`` tokens; None when no level does."""
    for level in levels:
        shown = show(transcripts, level)
        if shown.tokens <= budget:
            return shown
    return None


def force(transcripts: Sequence[Transcript], budget: int) -> Shown:
    """Like ``fit`` over all levels; at the last one whatever comes out."""
    return fit(transcripts, budget) or show(transcripts, LEVELS[-1])
