"""What strangers wrote, for a terminal or a log: nothing in it steers the terminal, hides or turns round what stands
beside it, or looks like another line.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, ExitStack, redirect_stderr, redirect_stdout
from typing import IO, Any, TextIO, cast

_STEERING = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
    r"\u180e\u200b\u2060-\u2064\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""C0 but tab and line feed, DEL, C1, what ends a line in some viewers, what turns the direction of a text, halves of
surrogate pairs, which cannot be written, and signs that are never seen.
"""
_HIGH = re.compile(r"[\x7f-\x9f\U000e0000-\U000e007f]")


def _escaped(found: re.Match[str]) -> str:
    """As JSON writes it."""
    return "".join(f"\\u{unit:04x}" for unit in memoryview(found[0].encode("utf-16-le")).cast("H"))


def printable(text: object, *, lines: bool = False) -> str:
    """The text with escapes in place of what steers. ``lines``: it may have several lines."""
    shown = _STEERING.sub(lambda m: ascii(m[0])[1:-1], str(text))
    return shown if lines else shown.replace("\n", "\\n")


class PrintableStream:
    """A text stream that writes nothing that steers a terminal; ``wrapped`` is for the program's own signs."""

    def __init__(self, wrapped: TextIO) -> None:
        self.wrapped = wrapped

    def write(self, text: str) -> int:
        # JSON knows no other escape of these, and has those below the blank as escapes already
        self.wrapped.write(printable(_HIGH.sub(_escaped, text), lines=True))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)


def own(stream: IO[str]) -> IO[str]:
    """The stream itself, for signs that the program means: a line that is drawn again."""
    return getattr(stream, "wrapped", stream)


def printing(out: TextIO, err: TextIO) -> AbstractContextManager[Any]:
    """All that is printed meanwhile steers nothing."""
    stack = ExitStack()
    stack.enter_context(redirect_stdout(cast("TextIO", PrintableStream(out))))
    stack.enter_context(redirect_stderr(cast("TextIO", PrintableStream(err))))
    return stack
