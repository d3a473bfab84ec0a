"""The data plane's metrics: plain numbers in each worker, summed over the workers' snapshots when somebody asks.

Labels are fixed sets (formats, outcomes, status classes), or names whose number is capped: adapters
(``MAX_ADAPTER_SERIES``,
the oldest are added up under ``other``) and the values of the tags that were asked for (``TAG_VALUES`` of each).
Metrics are not forgotten with an episode. So nothing that a client writes is in them unless somebody asked for it.
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slipstream.contract import tag_text
from slipstream_proxy.data.observe.exposition import MAX_LABEL_CHARS, SECONDS_BUCKETS, render
from slipstream_proxy.json_types import JsonList, JsonObject

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slipstream_proxy.redaction import Redaction

MAX_ADAPTER_SERIES = 50
"""Adapters with series of their own."""
TAG_VALUES = 20
OTHER_LABEL = "other"

CALLS_METRIC, TAGGED_METRIC = "slipstream_calls_total", "slipstream_tagged_calls_total"
CALL_SECONDS_METRIC, FIRST_BYTE_METRIC, CHUNK_METRIC = (
    "slipstream_call_seconds",
    "slipstream_first_byte_seconds",
    "slipstream_chunk_seconds",
)
OVERHEAD_METRIC, UPSTREAM_METRIC = "slipstream_overhead_seconds", "slipstream_upstream_seconds"
CAPTURE_LOST_METRIC = "slipstream_capture_lost_total"
"""``losses.LossCount`` keeps it."""
UNCAPTURED_METRIC = "slipstream_uncaptured_calls_total"
OVERSIZED_STATUS = 413
UNKNOWN_TENANTS_METRIC = "slipstream_unknown_tenants_total"
SPLIT_NAMES = "slipstream_split_session_names_total"
PER_FORMAT = (CALL_SECONDS_METRIC, FIRST_BYTE_METRIC, CHUNK_METRIC)


_BOUNDS: Final = list(SECONDS_BUCKETS)


class Histogram:
    """How many values each bucket has, and the ``total`` of all values."""

    __slots__ = ("_above", "_at", "_counts", "_here", "_most", "total")

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)
        self.total = 0.0
        self._at, self._above, self._most = 0, -math.inf, _BOUNDS[0]
        """The bucket of the latest value, which the next one is mostly in, too."""
        self._here = 0
        """Values in it that ``_counts`` has not yet."""

    def observe(self, seconds: float) -> None:
        self.total += seconds
        if not self._above < seconds <= self._most:
            self._move(seconds)
        self._here += 1

    def _move(self, seconds: float) -> None:
        """To the bucket of this value."""
        self._gather()
        at = self._at  # mostly it is next to the one before
        while at and _BOUNDS[at - 1] >= seconds:
            at -= 1
        while at < len(_BOUNDS) and _BOUNDS[at] < seconds:
            at += 1
        self._at, self._above = at, _BOUNDS[at - 1] if at else -math.inf
        self._most = _BOUNDS[at] if at < len(_BOUNDS) else math.inf

    def _gather(self) -> None:
        self._counts[self._at] += self._here
        self._here = 0

    def counts(self) -> list[int]:
        """By bucket, each without the smaller ones."""
        self._gather()
        return self._counts[:]


class OfFormat:
    """The histograms of one wire format."""

    __slots__ = ("call", "chunk", "first")

    def __init__(self) -> None:
        self.call, self.first, self.chunk = Histogram(), Histogram(), Histogram()


class AlikeCalls:
    """How many calls have one label. Most calls have the label of the one before."""

    __slots__ = ("adapter", "count", "form", "of_format", "outcome", "status")

    def __init__(self, form: str, outcome: str, status: int, adapter: str, of_format: OfFormat) -> None:
        """``status``: its first digit."""
        self.form, self.outcome, self.status, self.adapter = form, outcome, status, adapter
        self.of_format = of_format
        self.count = 0


def quoted(value: str) -> str:
    """A label's value in Prometheus's notation."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class WorkerMetrics:
    def __init__(self, tags: Iterable[str] = (), redaction: Redaction | None = None) -> None:
        """``tags``: names of tags that calls are counted by."""
        self._redaction = redaction
        self.values: dict[tuple[str, str], float] = {}
        self.calls: dict[tuple[str, str, int, str], AlikeCalls] = {}
        """By format, outcome, status // 100, adapter."""
        self._latest: AlikeCalls | None = None
        self.tagged: dict[tuple[str, str, int, str], int] = {}
        """(tag, value, status // 100, adapter) → calls."""
        self.formats: dict[str, OfFormat] = {}
        self.overhead, self.upstream = Histogram(), Histogram()
        self._adapters: dict[str, None] = {}
        self._tags: dict[str, dict[str, None]] = {name: {} for name in tags}
        self._before: list[JsonObject] = []
        self.turned_away: dict[int, tuple[int, float]] = {}
        """Status → calls that were refused with it before an engine saw them, and when the last one was."""

    def turn_away(self, status: int) -> None:
        self.turned_away[status] = (self.turned_away.get(status, (0, 0.0))[0] + 1, time.time())

    def refuse(self, status: int) -> None:
        """The proxy itself answers with an error."""
        self.add("slipstream_requests_refused_total", f'status="{status}"')
        if status == OVERSIZED_STATUS:  # no call was made of it, which else would say so
            self.turn_away(status)

    def add(self, name: str, labels: str = "", amount: float = 1.0) -> None:
        """``labels`` in Prometheus's own notation: ``status="404"``."""
        key = (name, labels)
        self.values[key] = self.values.get(key, 0.0) + amount

    def set(self, name: str, value: float, labels: str = "") -> None:
        self.values[(name, labels)] = value

    # --- a call that has ended --------------------------------------------------------------------------------------

    def count(self, form: str, outcome: str, status: int, adapter: str, tags: dict[str, str] | None) -> OfFormat:
        """A call. ``status``: its first digit. → The histograms of its format."""
        same = self._latest
        if (
            same is None
            or same.form is not form
            or same.outcome is not outcome
            or same.status != status
            or same.adapter is not adapter
        ):
            same = self._latest = self._alike(form, outcome, status, adapter)
        same.count += 1
        if tags:
            self._tag(tags, status, adapter)
        return same.of_format

    def _alike(self, form: str, outcome: str, status: int, adapter: str) -> AlikeCalls:
        label = (form, outcome, status, adapter)
        found = self.calls.get(label)
        if found is None:
            self._make_room(adapter)
            own = self.formats.get(form)
            if own is None:
                own = self.formats[form] = OfFormat()
            found = self.calls[label] = AlikeCalls(form, outcome, status, adapter, own)
        return found

    def _make_room(self, adapter: str) -> None:
        """With too many adapters ``other`` gets the calls of the oldest."""
        if adapter in self._adapters:
            return
        self._adapters[adapter] = None
        if len(self._adapters) > MAX_ADAPTER_SERIES:
            oldest = next(iter(self._adapters))
            del self._adapters[oldest]
            for old in [k for k in self.calls if k[3] == oldest]:
                gone, into = self.calls.pop(old), (*old[:3], OTHER_LABEL)
                others = self.calls.setdefault(into, AlikeCalls(*into, gone.of_format))
                others.count += gone.count
            for of in [k for k in self.tagged if k[3] == oldest]:
                sum_of = (*of[:3], OTHER_LABEL)
                self.tagged[sum_of] = self.tagged.get(sum_of, 0) + self.tagged.pop(of)

    def _tag(self, tags: dict[str, str], status: int, adapter: str) -> None:
        for name, value in tags.items():
            known = self._tags.get(name)
            if known is None:
                continue
            if self._redaction is not None:
                value = tag_text(self._redaction.text(f"tag.{name}", value))
            if value not in known:
                if len(known) >= TAG_VALUES or len(value) > MAX_LABEL_CHARS:
                    value = OTHER_LABEL
                else:
                    known[value] = None
            label = (name, value, status, adapter)
            self.tagged[label] = self.tagged.get(label, 0) + 1

    # --- out --------------------------------------------------------------------------------------------------------

    def snapshot(self) -> JsonObject:
        values: list[JsonList] = [[n, labels, v] for (n, labels), v in self.values.items()]
        for (form, outcome, status, adapter), alike in self.calls.items():
            labels = f'format="{form}",outcome="{outcome}",status="{status}xx",adapter="{quoted(adapter)}"'
            values.append([CALLS_METRIC, labels, alike.count])
        for (name, value, status, adapter), count in self.tagged.items():
            labels = f'tag="{quoted(name)}",value="{quoted(value)}",status="{status}xx",adapter="{quoted(adapter)}"'
            values.append([TAGGED_METRIC, labels, count])
        histograms: list[tuple[str, str, Histogram]] = [
            (OVERHEAD_METRIC, "", self.overhead),
            (UPSTREAM_METRIC, "", self.upstream),
        ]
        for form, own in self.formats.items():
            for family, histogram in zip(PER_FORMAT, (own.call, own.first, own.chunk), strict=True):
                histograms.append((family, f'format="{form}"', histogram))
        away: JsonList = [[status, count, at] for status, (count, at) in self.turned_away.items()]
        shown: JsonList = [[n, labels, h.counts(), h.total] for n, labels, h in histograms]
        return {"values": values, "histograms": shown, "turned_away": away}

    def save(self, path: Path, parts: list[JsonObject] | None = None) -> None:
        """For the other workers and ``status``. Best effort: on a full disk an older file is written over where it
        lies.

        Another thread must be given the ``parts``: it may not count while the event loop does.
        """
        text = json.dumps({"at": time.time(), "parts": self.parts() if parts is None else parts})
        temp = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temp.write_text(text.ljust((len(text) // 16384 + 1) * 16384))
            temp.replace(path)
        except OSError:
            self._save_over(path, text)
            try:
                temp.unlink(missing_ok=True)
            except OSError:
                return

    def _save_over(self, path: Path, text: str) -> None:
        try:
            with path.open("r+") as file:
                file.write(text.ljust(path.stat().st_size))
        except OSError:
            return

    def resume(self, path: Path) -> None:
        """Count on from what a worker of this number said before its restart. A sum over workers must not fall."""
        self._before = [
            {**p, "values": [v for v in p["values"] if v[0].endswith("_total") and v[0] != CAPTURE_LOST_METRIC]}
            for p in read_parts(path)
        ]

    def parts(self) -> list[JsonObject]:
        return [*self._before, self.snapshot()]


def read_parts(path: Path) -> list[JsonObject]:
    """Snapshots of a worker's file; nothing where there is none, or none that can be read."""
    try:
        found = json.loads(path.read_text())["parts"]
        return found if isinstance(found, list) else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


class WorkerCounts:
    """What all workers of a proxy have counted, as their files in ``folder`` say."""

    def __init__(self, folder: Path | None = None) -> None:
        self.uncaptured: dict[str, int] = {}
        """What asked for it (``capture``, ``split``, ``judge``) → calls that were not recorded."""
        self.split_names: dict[str, int] = {}
        """Field → sessions' names that stood for many runs, so that these were told apart by what is said."""
        self.unknown_tenants = 0
        """Requests whose tag named no tenant."""
        self.turned_away: dict[int, tuple[int, float]] = {}
        """As ``WorkerMetrics.turned_away``."""
        for path in folder.glob("data*.json") if folder is not None else ():
            for part in read_parts(path):
                self._add(part)

    def _add(self, part: JsonObject) -> None:
        labelled = {UNCAPTURED_METRIC: self.uncaptured, SPLIT_NAMES: self.split_names}
        for metric, labels, value in part["values"]:
            if metric == UNKNOWN_TENANTS_METRIC:
                self.unknown_tenants += int(value)
            elif (found := labelled.get(metric)) is not None:
                by = labels.split('"')[1]
                found[by] = found.get(by, 0) + round(value)
        for status, count, at in part.get("turned_away", ()):
            before = self.turned_away.get(status, (0, 0.0))
            self.turned_away[status] = (before[0] + count, max(before[1], at))


def gather(folder: Path, own: WorkerMetrics, own_file: str) -> str:
    """Prometheus text of all workers. This one's numbers are saved first, so that no later scrape sees less."""
    others = [p for p in sorted(folder.glob("data*.json")) if p.name != own_file] if folder.is_dir() else []
    if others:
        own.save(folder / own_file)
    return render([*own.parts(), *(part for path in others for part in read_parts(path))])
