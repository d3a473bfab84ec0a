"""Transcripts → the text of the data block, and shortening it to fit.

Shortening goes in levels (``EXCERPT_LEVELS``). Tool results and tool definitions come first, down to 250 characters
each.
Other steps follow only where even the smallest part of a split group is too long; steps and branches from the middle
come last. A line says what was left out where. No transcript can write such a line, because all its own lines begin
with ``| `` or ``~ ``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from slipstream_judge.text.transcript import Node, Step, Transcript, common_prefix, common_tools

CHARS_PER_TOKEN = 3.2
"""A cautious value for ASCII text with JSON in it. Any other character counts as a token."""


@dataclass(frozen=True, slots=True)
class Shortening:
    """Most characters of a tool result or definition, and of another step; most steps, tools, branches. None: any."""

    results: int | None = None
    steps: int | None = None
    count: int | None = None


RESULT_LEVELS = (Shortening(), *(Shortening(n) for n in (8000, 4000, 2000, 1000, 500, 250)))
EXCERPT_LEVELS = (
    *RESULT_LEVELS,
    *(Shortening(250, n) for n in (4000, 2000, 1000, 500, 250)),
    *(Shortening(250, 250, n) for n in (60, 30, 16, 8, 4)),
    Shortening(100, 100, 4),
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


def show_step(step: Step, number: int, cut: Shortening) -> str:
    lines = [f"[{number}] {step.kind}"]
    if step.aside:
        aside = step.aside if cut.steps is None else step.aside[: cut.steps]
        lines.append(quoted(aside, "~ "))
    if step.shortenable:
        lines.append(shortened(step.text, cut.results, "tool result"))
    elif step.text:
        lines.append(shortened(step.text, cut.steps, "step"))
    return "\n".join(lines)


def _nodes(nodes: Sequence[Node], cut: Shortening) -> list[str]:
    if cut.count is None or len(nodes) <= cut.count:
        return [show_step(n.step, n.number, cut) for n in nodes]
    head = cut.count // 2
    shown = [show_step(n.step, n.number, cut) for n in (*nodes[:head], *nodes[-(cut.count - head) :])]
    shown.insert(head, f"(… {len(nodes) - cut.count} steps were left out to shorten this …)")
    return shown


def tool_texts(tools: Sequence[str], cut: Shortening) -> list[str]:
    """The tools' definitions, quoted."""
    shown = [shortened(tool, cut.results, "definition") for tool in tools[: cut.count]]
    if len(shown) < len(tools):
        shown.append(f"(… {len(tools) - len(shown)} tools were left out to shorten this …)")
    return shown


def show_episode(transcript: Transcript, skip: int, tools: Sequence[str], cut: Shortening) -> str:
    """What is not shared: the main line after its first ``skip`` steps, then each branch."""
    lines: list[str] = []
    own = [t for t in transcript.tools if t not in tools]
    if own:
        lines += ["Tools that only this one had:", *tool_texts(own, cut)]
    if not transcript.branches:
        return "\n".join([*lines, "(nothing was recorded)"])
    lines += _nodes(transcript.main[skip:], cut) or ["(nothing beyond the shared beginning)"]
    branches = transcript.branches[1:]
    for branch in branches if cut.count is None else branches[: cut.count]:
        where = f"leaves after step {branch.source}" if branch.source else "begins on its own"
        lines.append(f"-- branch, from call {branch.call}, {where}: {branch.why}")
        lines += _nodes(branch.nodes, cut)
        lines.append("-- end of the branch")
    if cut.count is not None and len(branches) > cut.count:
        lines.append(f"(… {len(branches) - cut.count} branches were left out to shorten this …)")
    return "\n".join(lines)


@dataclass(slots=True)
class Shown:
    """The pieces of one prompt's data block: the shared beginning, and a text for each episode."""

    shared: str
    episodes: list[str]
    tokens: int
    cut: Shortening


def show(transcripts: Sequence[Transcript], cut: Shortening = Shortening()) -> Shown:
    skip = common_prefix(transcripts)
    tools = common_tools(transcripts)
    lines = []
    if tools:
        lines += ["Tools that were offered:", *tool_texts(tools, cut)]
    if skip:
        lines += [show_step(n.step, n.number, cut) for n in transcripts[0].main[:skip]]
    shared = "\n".join(lines)
    episodes = [show_episode(t, skip, tools, cut) for t in transcripts]
    return Shown(shared, episodes, estimate(shared) + sum(map(estimate, episodes)), cut)


def fit(transcripts: Sequence[Transcript], budget: int, levels: Sequence[Shortening] = EXCERPT_LEVELS) -> Shown | None:
    """At the least shortening that fits ``budget`` tokens; None when no level does."""
    for level in levels:
        shown = show(transcripts, level)
        if shown.tokens <= budget:
            return shown
    return None


def force(transcripts: Sequence[Transcript], budget: int) -> Shown:
    """Like ``fit`` over all levels; at the last one whatever comes out."""
    return fit(transcripts, budget) or show(transcripts, EXCERPT_LEVELS[-1])
