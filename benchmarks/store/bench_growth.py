"""How Slipstream behaves when it has grown: the same questions at few and at many episodes, of long runs and of many at once.

    python -m benchmarks.store.bench_growth [--small 10000] [--large 1000000] [--only PART …]

Parts: ``routes``, ``pins``, ``rate``, ``idle`` and ``forget`` (control planes over two stores that were filled with SQL, asked by turns), ``export``,
``runs`` and ``ingest`` (``long_runs.py``), ``streams`` (``../proxy/burst.py``) and ``agree`` (``agreement.py``). The last line is one JSON object;
``--postgres URL`` asks the first four, ``runs`` and ``ingest`` of an empty database that is filled with ``--postgres-episodes``, too. ``load`` has the machine's load average before and after each part: with no other work on two cores it is below 2.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from benchmarks.harness import in_turns, quantile, report, say
from benchmarks.proxy import burst
from benchmarks.store import agreement, grown, long_runs

PARTS = (*grown.PARTS, "export", "runs", "ingest", "streams", "agree")
CALLS, TURNS = 2_000, 150
CASES = 100_000
ROUTE_ROUNDS, PIN_ROUNDS = 9, 25
CALM = 30
"""Times that 16 new runs begin before and after."""
LEAST_MS = 0.5
"""A route is not called slower for less."""

Found = dict[str, object]


class Steps:
    """Says on the standard error how each part ends."""

    def __init__(self) -> None:
        self.load: dict[str, list[float]] = {}

    def run(self, part: str, made: Callable[[], Found]) -> Found:
        began, before = time.perf_counter(), os.getloadavg()[0]
        found = made()
        self.load[part] = [round(before, 1), round(os.getloadavg()[0], 1)]
        say(f"{part}: {time.perf_counter() - began:.1f} s {json.dumps(found)}")
        return found


def fill(folder: Path, episodes: int) -> Found:
    grown.filled(folder, episodes).close()
    return {}


def export(folders: dict[int, Path]) -> Found:
    few, many = (grown.opened(folder) for folder in folders.values())
    found = long_runs.export_growth(few, many, tuple(folders))  # type: ignore[arg-type]
    few.close()
    many.close()
    return {**found}


def both(small: grown.GrownProcess, large: grown.GrownProcess, what: str, rounds: int) -> list[list[Any]]:
    """What both say, by turns, without the first round."""
    asked = in_turns(rounds + 1, {"small": lambda: small.ask(what), "large": lambda: large.ask(what)})
    return [each[1:] for each in asked.values()]


def routes(small: grown.GrownProcess, large: grown.GrownProcess) -> Found:
    """Medians of each route, at rest, and how they have grown."""
    of_few, of_many = both(small, large, "routes", ROUTE_ROUNDS)
    few = {route: statistics.median(one[route] for one in of_few) for route in of_few[0]}
    many = {route: statistics.median(one[route] for one in of_many) for route in few}
    growth = {route: round(many[route] / max(ms, LEAST_MS), 2) for route, ms in few.items()}
    worst = max(growth, key=lambda route: growth[route])
    ms = {route: [round(few[route], 2), round(many[route], 2)] for route in few}
    return {"route_growth_worst": growth[worst], "worst": worst, "route_growth": growth, "route_ms": ms}


def pins(small: grown.GrownProcess, large: grown.GrownProcess) -> Found:
    of_few, of_many = both(small, large, "pins", PIN_ROUNDS)
    few, many = statistics.median(of_few), statistics.median(of_many)
    found = {"pin_p99_ms": round(many, 1), "pin_p99_ms_small": round(few, 1), "pin_growth": round(many / few, 2)}
    return {**found, "pin_worst_ms": round(max(of_many), 1), "pins_unanswered": large.ask("refused")}


def forget(small: grown.GrownProcess, large: grown.GrownProcess, most: float) -> Found:
    """First calls of 16 new runs at once, before an episode is forgotten and until no file holds it, each time beside those of a store in which
    nothing happens: how busy the machine is does not count.
    """

    def some() -> tuple[float, list[float]]:
        beside, found = small.ask("some"), large.ask("some")
        time.sleep(0.05)
        return statistics.median(found) / statistics.median(beside), found

    calm = [some() for _ in range(CALM)]
    assert large.ask("forget") == 1
    began, meanwhile = time.perf_counter(), list[tuple[float, list[float]]]()
    while (left := large.ask("left")) and time.perf_counter() - began < most:
        meanwhile.append(some())
    seconds = time.perf_counter() - began
    calm += [some() for _ in range(0 if left else CALM)]
    ratios = [statistics.median(ratio for ratio, _ in found) for found in (calm, meanwhile)]
    ms = [[one for _, some_ in found for one in some_] for found in (calm, meanwhile)]
    return {
        "forget_stall": round(ratios[1] / ratios[0], 2),
        "forget_p50_ms": [round(statistics.median(one), 1) for one in ms],
        "forget_p99_ms": [round(quantile(one, 0.99), 1) for one in ms],
        "forget_worst_ms": round(max(ms[1]), 1),
        "forget_seconds": round(seconds, 1),
        "forget_finished": not left,
    }


def of_stores(small: int, large: int, parts: Collection[str], steps: Steps, forget_most: float) -> Found:
    """What two stores of so many episodes cost."""
    found: Found = {}
    with tempfile.TemporaryDirectory() as name:
        folders = {episodes: Path(name) / str(episodes) for episodes in (small, large)}
        for episodes, folder in folders.items():
            found |= steps.run(f"fill {episodes}", lambda: fill(folder, episodes))
        if "export" in parts:
            found |= steps.run("export", lambda: export(folders))
        if any(part in parts for part in grown.PARTS):
            few, many = (grown.GrownProcess(folder, episodes) for episodes, folder in folders.items())
            made: dict[str, Callable[[], Found]] = {
                "routes": lambda: routes(few, many),
                "pins": lambda: pins(few, many),
                "rate": lambda: {"runs_small": few.ask("rate"), "runs": many.ask("rate")},
                "idle": lambda: {"idle_cpu_small": few.ask("idle"), "idle_cpu": many.ask("idle")},
                "forget": lambda: forget(few, many, forget_most),
            }
            for part in (part for part in made if part in parts):
                found |= steps.run(part, made[part])
            few.close()
            many.close()
    return found


def of_postgres(url: str, episodes: int, parts: Collection[str]) -> Found:
    with tempfile.TemporaryDirectory() as name:
        grown.filled(Path(name), episodes, url).close()
        process = grown.GrownProcess(Path(name), episodes, url)
        found: Found = {"episodes": episodes}
        if "routes" in parts:
            asked = [process.ask("routes") for _ in range(ROUTE_ROUNDS)]
            found["route_ms"] = {route: round(statistics.median(one[route] for one in asked), 2) for route in asked[0]}
        if "pins" in parts:
            found["pin_p99_ms"] = round(statistics.median(process.ask("pins") for _ in range(PIN_ROUNDS)), 1)
        for part in (part for part in ("rate", "idle") if part in parts):
            found[part] = process.ask(part)
        process.close()
    if "runs" in parts:
        found["runs"] = long_runs.long_run(CALLS, url)
    if "ingest" in parts:
        found["ingest"] = long_runs.ingest(TURNS, url)
    return {"postgres": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=1_000_000)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--forget-most", type=float, default=1200.0, help="seconds that forgetting is looked at")
    parser.add_argument("--postgres", metavar="URL")
    parser.add_argument("--postgres-episodes", type=int, default=100_000)
    args = parser.parse_args()
    steps = Steps()
    found: Found = {"episodes": [args.small, args.large]}
    if any(part in args.only for part in (*grown.PARTS, "export")):
        found |= of_stores(args.small, args.large, args.only, steps, args.forget_most)
    made: dict[str, Callable[[], Found]] = {
        "runs": lambda: {**long_runs.long_run(CALLS)},
        "ingest": lambda: {**long_runs.ingest(TURNS)},
        "streams": lambda: burst.burst(args.streams),
        "agree": lambda: {**agreement.agreement(CASES)},
    }
    for part in (part for part in made if part in args.only):
        found |= steps.run(part, made[part])
    if args.postgres:
        found |= steps.run("postgres", lambda: of_postgres(args.postgres, args.postgres_episodes, args.only))
    report({**found, "load": steps.load})


if __name__ == "__main__":
    main()
