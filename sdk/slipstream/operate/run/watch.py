"""What happens while it runs, a line each: steps, verdicts, what is in the way, and the held-out curve.

``slipstream up`` shows it in place of its children's logs, ``slipstream status --follow`` beside a proxy that runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from slipstream import contract as c
from slipstream.client import AsyncClient
from slipstream.errors import ApiError, Unavailable
from slipstream.shared.files import private_file

WATCH_INTERVAL_S = 2.0
"""Seconds between two looks."""
BAR_GLYPHS = "▁▂▃▄▅▆▇█"
MOST_BARS = 40
LOUD_LINE_PATTERNS = (
    " warning ",
    " error ",
    " critical ",
    "WARNING ",
    "ERROR ",
    "CRITICAL ",
    '"level": "warning"',
    '"level": "error"',
)
"""In a line of a child's log: a person should see it."""
VLLM_LINE_PREFIX_PATTERN = re.compile(r"(\([^)]*\) ?)?(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d (\[[^]]*\]) ?)?")
"""What vLLM writes before each line, also before those of a traceback: the process, level, time and place."""
CHAINED_TRACEBACK_TEXTS = ("During handling of the above", "The above exception was")
REPEATED_ERROR_QUIET_S = 60.0
"""Seconds in which the same error of a child is shown once."""
OF_DOCTOR = re.compile(
    r"slipstream-doctor|LoRA rank 4096\b|Invocation of add_lora method failed|WorkerProc hit an exception"
)
"""What the doctor's questions make an engine log: it is asked to load adapters that cannot be loaded. Of an adapter
that was meant, the proxy says that it was refused. An exception that is only announced has its traceback behind it.
"""
PARSER_ERROR_PATTERN = re.compile(r"\[(\w*(?:tool|reasoning)\w*parser\w*\.py)\b")
PARSER_PAUSE_S = 600.0
"""In which a parser's errors are shown once, and warnings of one place in vLLM's code: a small model writes many tool
calls that cannot be read.
"""
LOG_BYTES = 20 * 2**20
"""Of the children's log, at which a new one is begun. The one before stays."""


def sparkline(values: Sequence[float]) -> str:
    """From the lowest to the highest value; the latest ones."""
    shown = list(values)[-MOST_BARS:]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    return "".join(BAR_GLYPHS[round((v - low) / (high - low or 1.0) * (len(BAR_GLYPHS) - 1))] for v in shown)


def told(event: c.Event) -> str:
    """An event in a line."""
    data = event.data
    if event.kind == "adapter" and data.get("state") == "candidate" and data.get("control"):
        return f"{data.get('adapter')} serves new episodes, on trial beside {data['control']}"
    number = data.get("step")
    words = [event.kind.replace("_", " ") + (f" {number}" if number is not None else "")]
    words += [
        str(data[name]) for name in ("adapter", "batch") if data.get(name) and (name == "adapter" or number is None)
    ]
    figures = [f"{name} {value:.3g}" for name in ("reward", "kl") if isinstance(value := data.get(name), int | float)]
    why = str(data.get("reason") or data.get("text") or ", ".join(figures))
    return " ".join(words) + (f": {why}" if why else "")


def is_made(event: c.Event) -> bool:
    """A step, or the version that it made, which nobody gets yet. The step's own line names it."""
    return event.kind == "step" or (event.kind == "adapter" and event.data.get("state") == "loading")


def is_loud(line: str) -> bool:
    return any(mark in line[:80] for mark in LOUD_LINE_PATTERNS)


def last_line(lines: Iterable[str]) -> str:
    """What a child said last, without what vLLM writes before each line."""
    said = [line.strip() for line in lines if line.strip()]
    return VLLM_LINE_PREFIX_PATTERN.sub("", said[-1], count=1) if said else "it has printed nothing yet"


class Quiet:
    """What ``slipstream up`` shows of its children's logs: warnings and errors, each traceback as one line. ``log``
    gets all of them.
    """

    def __init__(self, log: Path, *, verbose: bool = False) -> None:
        """``verbose``: all of it is shown."""
        self.log, self.verbose = log, verbose
        self.ending: Callable[[], bool] = bool
        """Whether all are to end: what vLLM calls errors then is how its processes miss each other."""
        self._within: dict[tuple[str, str], tuple[str, str]] = {}
        """(child, its process) → what its latest lines belong to (``loud``, ``hidden``, ``traceback``, ``told``,
        ``chained``), and the place in the code that logged them.
        """
        self._places: dict[tuple[str, str], float] = {}
        """(child, parser or place in the code) → when its error or warning was shown (monotonic seconds)."""
        self._told: dict[tuple[str, str], float] = {}
        """(child, error) → when its traceback was shown (monotonic seconds)."""

    def __call__(self, name: str, line: str) -> str | None:
        self._keep(f"{name:8} | {line}\n")
        head = VLLM_LINE_PREFIX_PATTERN.match(line)
        if self.verbose or head is None:
            return line
        if name == "engine" and self.ending():
            return None
        text, process, place = line[head.end() :], (name, head[1] or ""), head[2] or ""
        within, began = self._within.get(process, ("", ""))
        goes_on = text.startswith((" ", "\t", "|")) or not text
        state, said = within, None
        if text.startswith("Traceback (most"):
            state = within if within == "chained" else "traceback"
        elif within in ("traceback", "told", "chained") and text.startswith(CHAINED_TRACEBACK_TEXTS):
            state = "chained"
        elif within == "traceback" and not goes_on:
            state, said = "told", self._once(name, text)
        elif within == "chained" and not goes_on:
            state = "told"
        elif within in ("traceback", "chained") or (within == "told" and (goes_on or place == began != "")):
            pass
        elif is_loud(line) or (within == "loud" and goes_on and text):
            state, said = "loud", line
        else:
            state = ""
        if said is line and place and "WARNING " in line[:80]:
            again = within == "hidden" if goes_on else not self._first(name, place)
            state, said = ("hidden", None) if again else (state, said)
        self._within[process] = state, place
        if said is not None and OF_DOCTOR.search(text):
            return None
        if said is not None and (parser := PARSER_ERROR_PATTERN.search(place)):
            return self._of_parser(name, parser[1], text)
        return said

    def _first(self, name: str, place: str) -> bool:
        """Whether nothing of this place was shown lately."""
        now = time.monotonic()
        if now - self._places.get((name, place), -PARSER_PAUSE_S) < PARSER_PAUSE_S:
            return False
        self._places[name, place] = now
        return True

    def _of_parser(self, name: str, parser: str, text: str) -> str | None:
        if not self._first(name, parser):
            return None
        return f"{name}'s {parser} cannot read what the model wrote: {text} (more of them: {self.log})"

    def _once(self, name: str, error: str) -> str | None:
        now = time.monotonic()
        if now - self._told.get((name, error), -REPEATED_ERROR_QUIET_S) < REPEATED_ERROR_QUIET_S:
            return None
        self._told = {told: at for told, at in self._told.items() if now - at < REPEATED_ERROR_QUIET_S} | {
            (name, error): now
        }
        return f"{error} (its traceback: {self.log})"

    def _keep(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end what runs
            if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
                self.log.replace(self.log.with_suffix(".log.1"))
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with private_file(self.log, append=True) as file:  # a parser of the engine's quotes the model
                file.write(line.encode("utf-8", "replace"))


class Watch:
    """``say`` gets each line that is new."""

    def __init__(self, client: AsyncClient, say: Callable[[str], None]) -> None:
        self.client, self.say = client, say
        self._seen: dict[tuple[str, str, bool], str] = {}
        """(stage, cause, whether it blocks) → what was said."""
        self._headlines: dict[str, str] = {}
        self._after: int | None = None
        self._lost = 0
        """Looks in a row that nobody answered."""

    async def look(self) -> None:
        """What has come since the last look. Raises ``ApiError`` where the proxy refuses."""
        try:
            status = await self.client.status()
            events = await self._events()
            news = events is None or not all(map(is_made, events))
            curve = await self.client.learning(by="adapter", split="eval") if news else None
        except ApiError as e:
            if not (isinstance(e, Unavailable) or e.status == 503):
                raise
            self._lost += 1
            if self._lost == 2:  # once is no more than a start
                self.say(f"! the proxy does not answer: {e}")
            return
        if self._lost >= 2:
            self.say("the proxy answers again")
        self._lost = 0
        for event in events or ():
            if event.kind == "adapter" and is_made(event):
                continue
            self.say(f"{time.strftime('%H:%M:%S', time.localtime(event.at))} {told(event)}")
        self._say_troubles(status.funnel)
        if curve is not None and status.headlines != self._headlines:
            means = [p.mean for p in sorted(curve.points, key=lambda p: p.version or 0)]
            for text in status.headlines.values():
                self.say(f"{sparkline(means)} {text}".strip())
            self._headlines = status.headlines

    def _say_troubles(self, funnel: c.Funnel) -> None:
        """The worst first: what blocks each time it comes, and when it is over; what slows once."""
        there = {(line.stage, line.cause, line.blocks): line for line in funnel.troubles()}
        for key, line in there.items():
            if key not in self._seen:
                self.say(f"{line.severity.mark} {line.sentence}")
        standing = {(line.stage, line.cause) for line in funnel.lines}
        for (stage, cause, blocks), text in self._seen.items():
            if blocks and (stage, cause) not in standing:
                self.say(f"over: {text}")
        gone = [key for key in self._seen if key[2] and key not in there]
        self._seen = {key: text for key, text in self._seen.items() if key not in gone}
        self._seen |= {key: line.text for key, line in there.items()}

    async def _events(self) -> list[c.Event] | None:
        """New ones; None at the first look, which only finds out what was before."""
        first = self._after is None
        events = await self.client.events(self._after or 0)
        self._after = events[-1].id if events else (self._after or 0)
        return None if first else events


async def watch(client: AsyncClient, say: Callable[[str], None], *, period: float = WATCH_INTERVAL_S) -> None:
    """For ever. What the proxy refuses is said once, and asked again: it may be mended."""
    seen = Watch(client, say)
    refused: str | None = None
    while True:
        try:
            await seen.look()
            refused = None
        except ApiError as e:
            if str(e) != refused:
                say(f"! what happens is not shown: {e}")
            refused = str(e)
        await asyncio.sleep(period)
