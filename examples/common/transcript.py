"""What a judge reads of a run, taken apart: for the rules of simulated judges."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

__all__ = ["Called", "calls", "said"]

CALL = re.compile(r"^\| (\w+) #\d+ (\{.*\})\s*$", re.MULTILINE)
LINE = re.compile(r"^\| ?(.*)$", re.MULTILINE)


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
