"""What ``slipstream doctor`` found, why it matters, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NO_CALLS = "agents get no answers"
NO_TOKENS = "nothing can be trained on"


@dataclass(slots=True)
class Finding:
    """``fail``: something does not work, or will not. ``warn``: it works, and not as well as it could.

    Both say what was seen, why it matters, and the command or setting that mends it.
    """

    level: Literal["ok", "warn", "fail"]
    what: str
    why: str = ""
    fix: str = ""
    about: str = ""
    """The stage of the funnel that says it; empty: none does."""


def ok(what: str) -> Finding:
    return Finding("ok", what)


def warn(what: str, why: str, fix: str) -> Finding:
    return Finding("warn", what, why, fix)


def fail(what: str, why: str, fix: str) -> Finding:
    return Finding("fail", what, why, fix)
