"""The data plane's metrics: plain numbers in each worker, summed over the workers' snapshots when somebody asks.

Labels come from fixed sets (formats, outcomes, status classes), never from what a client sent: their number is bounded.
"""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_left
from pathlib import Path

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

FAMILIES: dict[str, tuple[str, str]] = {
    "slipstream_calls_total": ("counter", "Captured-format calls answered, by format, outcome and status class."),
    "slipstream_capture_lost_total": ("counter", "Calls that were served but could not be written to the spool."),
    "slipstream_requests_refused_total": ("counter", "Requests refused by the proxy itself, by status."),
    "slipstream_upstream_retries_total": ("counter", "Calls sent again to another connection or engine."),
    "slipstream_pins_total": ("counter", "Episodes pinned, by who decided."),
    "slipstream_in_flight": ("gauge", "Calls being answered."),
    "slipstream_connections": ("gauge", "Client connections."),
    "slipstream_event_loop_lag_seconds": ("gauge", "How late the worker's one-second timer was, last time."),
    "slipstream_held_calls_total": ("counter", "Calls that waited because the trainer had the engine's GPU (engine.share)."),
    "slipstream_hold_wait_seconds_total": ("counter", "Time that those calls waited."),
    "slipstream_hold_longest_seconds": ("gauge", "The longest of those waits since the start."),
    "slipstream_call_seconds": ("histogram", "Time from a call's arrival to its reply's end."),
    "slipstream_first_byte_seconds": ("histogram", "Time from a call's arrival to the engine's first byte."),
}


class Histogram:
    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


class Metrics:
    def __init__(self) -> None:
        self.values: dict[tuple[str, str], float] = {}
        self.call_seconds = Histogram()
        self.first_byte = Histogram()

    def add(self, name: str, labels: str = "", amount: float = 1.0) -> None:
        """``labels`` in Prometheus's own notation: ``format="chat",outcome="ok"``."""
        key = (name, labels)
        self.values[key] = self.values.get(key, 0.0) + amount

    def set(self, name: str, value: float, labels: str = "") -> None:
        self.values[(name, labels)] = value

    def snapshot(self) -> dict[str, object]:
        return {
            "values": [[n, labels, v] for (n, labels), v in self.values.items()],
            "histograms": {
                "slipstream_call_seconds": [self.call_seconds.counts, self.call_seconds.total],
                "slipstream_first_byte_seconds": [self.first_byte.counts, self.first_byte.total],
            },
        }

    def save(self, path: Path) -> None:
        """For the other workers. Best effort: a full disk must not matter here."""
        temp = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temp.write_text(json.dumps({"at": time.time(), **self.snapshot()}))
            temp.replace(path)
        except OSError:
            return


def gather(folder: Path, own: Metrics, own_file: str) -> str:
    """Prometheus text of all workers: this one's numbers as they are now, the others' as they were saved last."""
    snapshots = [own.snapshot()]
    for path in sorted(folder.glob("data*.json")) if folder.is_dir() else ():
        if path.name != own_file:
            try:
                snapshots.append(json.loads(path.read_text()))
            except (OSError, ValueError):
                continue
    values: dict[tuple[str, str], float] = {}
    histograms: dict[str, tuple[list[int], float]] = {}
    for snapshot in snapshots:
        for name, labels, value in snapshot["values"]:  # type: ignore[attr-defined]
            values[(name, labels)] = values.get((name, labels), 0.0) + value
        for name, (counts, total) in snapshot["histograms"].items():  # type: ignore[attr-defined]
            before = histograms.get(name, ([0] * len(counts), 0.0))
            histograms[name] = ([a + b for a, b in zip(before[0], counts, strict=True)], before[1] + total)
    return _render(values, histograms)


def _render(values: dict[tuple[str, str], float], histograms: dict[str, tuple[list[int], float]]) -> str:
    lines: list[str] = []
    for name, (kind, text) in FAMILIES.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        if kind == "histogram":
            counts, total = histograms.get(name, ([0] * (len(BUCKETS) + 1), 0.0))
            seen = 0
            for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                seen += count
                lines.append(f'{name}_bucket{{le="{bound}"}} {seen}')
            lines += [f"{name}_sum {total:.6f}", f"{name}_count {seen}"]
            continue
        found = sorted((labels, v) for (n, labels), v in values.items() if n == name)
        lines += [f"{name}{{{labels}}} {v:g}" if labels else f"{name} {v:g}" for labels, v in found or [("", 0.0)]]
    return "\n".join(lines) + "\n"
