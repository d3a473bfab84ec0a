"""What ``slipstream doctor`` found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(slots=True)
class Finding:
    """``fail``: something does not work, or will not. ``warn``: it works, and not as well as it could.

    Both have a fix.
    """

    level: Literal["ok", "warn", "fail"]
    what: str
    fix: str = ""


def ok(what: str) -> Finding:
    return Finding("ok", what)


def warn(what: str, fix: str) -> Finding:
    return Finding("warn", what, fix)


def fail(what: str, fix: str) -> Finding:
    return Finding("fail", what, fix)
