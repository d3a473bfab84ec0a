"""What a judge reads of a run, taken apart: for the rules of simulated judges."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

__all__ = ["Called", "Said", "calls", "said", "steps"]

CALL = re.compile(r"^\| (\w+) #\d+ (\{.*\})\s*$", re.MULTILINE)
LINE = re.compile(r"^\| ?(.*)$", re.MULTILINE)
STEP = re.compile(r"^\[\d+\] (.*)((?:\n\|.*)*)", re.MULTILINE)


class Called(NamedTuple):
    """A tool call: its name, its arguments, and where its line begins in the transcript."""

    name: str
    arguments: dict[str, object]
    place: int


def calls(transcript: str) -> list[Called]:
    """The tool calls in the order of the transcript. One whose arguments are no JSON object is left out."""
    found = []
    for match in CALL.finditer(transcript):
        try:
            arguments = json.loads(match[2])
        except ValueError:
            continue
        if isinstance(arguments, dict):
            found.append(Called(match[1], arguments, match.start()))
    return found


def said(transcript: str) -> list[str]:
    """What the agent, its user and its tools said, line by line."""
    return [match[1] for match in LINE.finditer(transcript)]


class Said(NamedTuple):
    """One step: its heading ("user", "assistant", "tool result of call #1"), and its own words, line by line."""

    kind: str
    lines: list[str]


def steps(transcript: str) -> list[Said]:
    """The steps in the order of the transcript. Their headings are the judge's: no run can write one."""
    return [Said(match[1], said(match[2])) for match in STEP.finditer(transcript)]
