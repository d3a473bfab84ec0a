"""What good means: the default rubric, the user's own, and which one a task gets."""

from __future__ import annotations

import fnmatch
import hashlib
from pathlib import Path

from slipstream.errors import ConfigError
from slipstream.settings import JudgeConfig

DEFAULT_RUBRIC = """\
1. Did it reach the goal that its task states? A run that does scores significantly higher than every run that does
   not. What counts is what the record shows: a claim of success that the tool results do not bear out is no success.
2. Of runs that do not reach it: how much real progress did they make towards it? More progress scores higher.
3. Of runs that are equal in that: the one with fewer wasted steps, repeated or pointless calls and errors scores
   slightly higher.
A small difference between two runs is a small difference between their scores."""


def text_of(value: str) -> str:
    """A rubric's text: the file's, where ``value`` names one, else ``value`` itself.

    Raises ``ConfigError`` when a value that can only be a path (one line, ending in .txt or .md) is not there, or is
    empty.
    """
    one_line = "\n" not in value and len(value) < 1024
    path = Path(value).expanduser()
    if one_line and value.strip():
        try:
            if _is_there(path):  # a folder too: its name is no rubric
                value = path.read_text()
            elif path.suffix in {".txt", ".md"} and " " not in value.strip():
                raise ConfigError(f"judge.rubric: no file {value}")
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"judge.rubric: {value}: {e}") from e
    if not value.strip():
        raise ConfigError("judge.rubric is empty")
    return value.strip()


def _is_there(path: Path) -> bool:
    """False too for a text that no file can be called: a sentence of 256 characters is too long for a name."""
    try:
        return path.exists()
    except OSError:
        return False


def rubric_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Rubrics:
    """Read once, at the start.

    The first pattern of ``judge.rubrics`` that matches a task wins, then ``judge.rubric``, then the default.
    """

    def __init__(self, judge: JudgeConfig, override: str | None = None) -> None:
        self.patterns = [] if override else [(pattern, text_of(value)) for pattern, value in judge.rubrics.items()]
        value = override or judge.rubric
        self.default = DEFAULT_RUBRIC if value is None else text_of(value)

    def of(self, task: str | None) -> str:
        return next((text for pattern, text in self.patterns if fnmatch.fnmatchcase(task or "", pattern)), self.default)
