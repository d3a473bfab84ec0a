"""What an import took, what it left out and why: nothing is lost without a line here."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import NamedTuple

from slipstream.contract import ImportState
from slipstream.errors import SlipstreamError
from slipstream.shared.printable import printable

Value = object
"""Any value of a file that others wrote."""
MOST_LINES = 20
"""Refused rows that are named one by one."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_DAY = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?|(19|20)\d\d(0[1-9]|1[0-2])([0-2]\d|3[01])([T ].*)?")
MOST_REWARD = 1e12
IMPORT_STATES: tuple[ImportState, ...] = ("there", "changed", "new")


class Counts(NamedTuple):
    """What one episode brings in."""

    episodes: int = 1
    calls: int = 0
    tool_calls: int = 0
    rewards: int = 0


class Refused(SlipstreamError):
    """A row that is not imported. ``field``: where in the row; empty: all of it."""

    def __init__(self, why: str, field: str = "") -> None:
        super().__init__(f"{field}: {why}" if field else why)


@dataclass(slots=True)
class Report:
    """Counts of one import. ``dropped`` and ``converted``: (what, why) → how often; ``first``: where it was first."""

    episodes: int = 0
    calls: int = 0
    tool_calls: int = 0
    rewards: int = 0
    refused: list[str] = field(default_factory=list)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    converted: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: dict[tuple[str, str], str] = field(default_factory=dict)
    side_branches: int = 0
    """Calls and messages that lie beside the conversation as it went on."""
    states: dict[int, ImportState] = field(default_factory=dict)
    """A hash of each episode that the proxy took → what became of it."""

    @property
    def clean(self) -> bool:
        return not (self.refused or self.dropped or self.converted)

    def take(self, counts: Counts) -> None:
        self.episodes += counts.episodes
        self.calls += counts.calls
        self.tool_calls += counts.tool_calls
        self.rewards += counts.rewards

    def stand(self, episode: str, state: ImportState) -> None:
        """Several runs may be one episode: it is new if one of them was, and there if each was."""
        at = hash(episode)
        self.states[at] = max(state, self.states.get(at, state), key=IMPORT_STATES.index)

    def standing(self) -> dict[str, int]:
        """Episodes that are new, were there, or changed."""
        counted = Counter(self.states.values())
        return {state: counted[state] for state in ("new", "there", "changed")}

    def refuse(self, where: str, why: object) -> None:
        self.refused.append(f"{where}: {why}")

    def note(self, kind: Counter[tuple[str, str]], where: str, what: str, why: str) -> None:
        kind[what, why] += 1
        self.first.setdefault((what, why), where)

    def lines(self) -> list[str]:
        """A sentence for each thing that was not taken as it stood."""
        found = [f"refused: {line}" for line in self.refused[:MOST_LINES]]
        if (more := len(self.refused) - MOST_LINES) > 0:
            found.append(f"refused: {more} more")
        for verb, kind in (("dropped", self.dropped), ("converted", self.converted)):
            found += [
                f"{verb}: {n} × {what}: {why} (first at {self.first[what, why]})" for (what, why), n in kind.items()
            ]
        return [printable(line) for line in found]  # names of fields, and values, are the log's own

    def summary(self) -> str:
        counts = {"episode": self.episodes, "call": self.calls, "tool call": self.tool_calls, "reward": self.rewards}
        told = [f"{n} {name}{'' if n == 1 else 's'}" for name, n in counts.items()]
        told += [f"{n} {'already ' if state == 'there' else ''}{state}" for state, n in self.standing().items() if n]
        told += [f"{self.side_branches} on side branches"] if self.side_branches else []
        lost = {"refused": len(self.refused), "dropped": self.dropped.total(), "converted": self.converted.total()}
        return ", ".join([*told, *(f"{n} {name}" for name, n in lost.items() if n)])

    def as_json(self) -> dict[str, object]:
        def listed(kind: Counter[tuple[str, str]]) -> list[dict[str, object]]:
            return [
                {"what": what, "why": why, "count": n, "first": self.first[what, why]}
                for (what, why), n in kind.items()
            ]

        counts = {"episodes": self.episodes, "calls": self.calls, "tool_calls": self.tool_calls}
        told: dict[str, object] = {
            **counts,
            "rewards": self.rewards,
            **self.standing(),
            "side_branches": self.side_branches,
        }
        told["refused"] = self.refused
        return told | {"dropped": listed(self.dropped), "converted": listed(self.converted)}


@dataclass(slots=True)
class Place:
    """Where in a file a value stands, so that what happens to it is told with its place."""

    report: Report
    where: str

    def drop(self, what: str, why: str) -> None:
        self.report.note(self.report.dropped, self.where, what, why)

    def branch(self, count: int) -> None:
        self.report.side_branches += count

    def convert(self, what: str, why: str) -> None:
        self.report.note(self.report.converted, self.where, what, why)

    def number(self, value: Value, field: str) -> float:
        """A finite number. Text of digits and true or false are converted. Raises ``Refused``."""
        if isinstance(value, bool):
            self.convert(field, "true and false are read as 1 and 0")
            return float(value)
        if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
            self.convert(field, "text is read as the number that it shows")
            value = float(value)
        if not isinstance(value, int | float):
            raise Refused(f"a number is needed, this is {_kind(value)}", field)
        if not -MOST_REWARD <= value <= MOST_REWARD:
            raise Refused(f"a number between -1e12 and 1e12 is needed, this is {value!r:.40}", field)
        return float(value)

    def score(self, value: Value, field: str) -> float | None:
        """A number beside the reward. None: it is none, which is told."""
        if value is None:
            return None
        try:
            return self.number(value, field)
        except Refused as e:
            self.drop(field, str(e).removeprefix(f"{field}: "))
            return None

    def time(self, value: Value, field: str) -> float | None:
        """Seconds since the epoch. None: it is no time, which is told."""
        if value is None or value == "":
            return None
        read = time_of(value)
        if read is None:
            self.drop(field, f"no time can be read from {_kind(value)}")
        return read


def _kind(value: Value) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    shown = f" ({value!r:.30})" if isinstance(value, str) else ""
    return names.get(type(value), type(value).__name__) + shown


def time_of(value: Value) -> float | None:
    """Seconds since the epoch, of ISO 8601, seconds, milliseconds, micro- or nanoseconds. Dates without a zone: UTC."""
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)  # noqa: DTZ001 - read as UTC below
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, str) and _DAY.fullmatch(value.strip()):
        try:
            read = datetime.fromisoformat(re.sub(r" (UTC|GMT)$", "", value.strip().upper()))
            return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number) or number < 0:
        return None
    while number > 1e11:
        number /= 1000.0
    return number
