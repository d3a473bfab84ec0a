"""One line of live progress on a terminal; a line now and then where it is none."""

from __future__ import annotations

import sys
import time

from slipstream.shared.printable import own, printable

QUIET_SECONDS = 10.0
BAR_COLUMNS = 20


def wanted(asked: bool) -> Progress | None:
    """Progress on a terminal, or where it was asked for."""
    return Progress() if asked or sys.stderr.isatty() else None


class Progress:
    """``update`` redraws the line, ``say`` prints above it. Everything goes to stderr."""

    def __init__(self) -> None:
        self.tty = sys.stderr.isatty()
        self._last = 0.0
        self._what = ""
        self._began = time.monotonic()

    def say(self, line: str) -> None:
        own(sys.stderr).write(("\r\x1b[K" if self.tty else "") + printable(line, lines=True) + "\n")
        sys.stderr.flush()

    def count(self, what: str, **figures: object) -> None:
        """How far something is whose end nobody knows."""
        now = time.monotonic()
        if now - self._last < (0.1 if self.tty else QUIET_SECONDS):
            return
        self._last = now
        self._draw("  ".join([what, *(f"{name.replace('_', ' ')} {value}" for name, value in figures.items())]))

    def now(self, what: str) -> None:
        """What is begun, on a terminal alone."""
        if self.tty:
            self._draw(what)

    def clear(self) -> None:
        """Take the line away."""
        if self.tty:
            own(sys.stderr).write("\r\x1b[K")
            sys.stderr.flush()

    def _draw(self, line: str) -> None:
        line = printable(line)
        own(sys.stderr).write(f"\r\x1b[K{line}" if self.tty else f"{line}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """The line stays as it is."""
        if self.tty and self._last:
            sys.stderr.write("\n")
            sys.stderr.flush()

    def update(self, what: str, done: float, total: float, **figures: object) -> None:
        """``done`` of ``total`` (any unit), with figures that are worth seeing. The ETA is by the pace so far."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._began, self._last = what, now, 0.0
        if now - self._last < (0.1 if self.tty else QUIET_SECONDS) and done < total:
            return
        self._last = now
        share = min(1.0, done / total) if total else 0.0
        left = f"{(now - self._began) * (1 - share) / share:.0f} s" if share > 0.01 else "…"
        bar = "█" * int(share * BAR_COLUMNS) + "·" * (BAR_COLUMNS - int(share * BAR_COLUMNS))
        shown = "  ".join(
            f"{k.replace('_', ' ')} {v:.0%}" if k == "success" else f"{k.replace('_', ' ')} {v}"
            for k, v in figures.items()
        )
        self._draw(f"{what} {bar} {share:4.0%}  ETA {left}  {shown}")
        if self.tty and done >= total:
            sys.stderr.write("\n")
