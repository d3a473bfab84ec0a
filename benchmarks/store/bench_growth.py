"""How Slipstream behaves when it has grown: the same questions at few and at many episodes, of long runs and of many at once.

    python benchmarks/store/bench_growth.py [--small 10000] [--large 1000000] [--only PART …]

Parts: ``routes``, ``pins``, ``idle`` and ``forget`` (a control plane over a store that was filled with SQL), ``export``, ``runs`` and ``ingest``
(``long_runs.py``), ``streams`` (``../proxy/burst.py``) and ``agree`` (``agreement.py``). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

import agreement
import grown
import long_runs

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "proxy"))

import burst

PARTS = (*grown.PARTS, "export", "runs", "ingest", "streams", "agree")
CALLS, TURNS = 2_000, 150
CASES = 100_000


def of_size(episodes: int, parts: Collection[str]) -> dict[str, object]:
    """What a store of so many episodes costs."""
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        store = grown.filled(Path(name), episodes)
        say(f"{episodes} episodes", began)
        if "export" in parts:
            began = time.perf_counter()
            found["export_us"] = long_runs.export_us(store, episodes)
            say(f"export of {episodes}", began)
        store.close()
        if any(part in parts for part in grown.PARTS):
            began = time.perf_counter()
            found |= asyncio.run(grown.measure(Path(name), episodes, parts))
            say(f"a control plane over {episodes}", began)
    return found


def compared(small: dict[str, object], large: dict[str, object], parts: Collection[str]) -> dict[str, object]:
    found: dict[str, object] = {"small": small, "large": large}
    if "routes" in parts:
        few, many = small["routes"], large["routes"]
        assert isinstance(few, dict)
        assert isinstance(many, dict)
        growth = {route: round(many[route] / max(ms, 0.5), 2) for route, ms in few.items()}
        worst = max(growth, key=lambda route: growth[route])
        found |= {"route_growth_worst": growth[worst], "worst": worst, "route_growth": growth}
    if "pins" in parts:
        ms = float(str(large["pin_p99_ms"]))
        found["pins_unanswered"] = large["pins_unanswered"]
        found |= {"pin_p99_ms": ms, "pin_growth": round(ms / float(str(small["pin_p99_ms"])), 2)}
    if "forget" in parts:
        forget = large["forget"]
        assert isinstance(forget, dict)
        found |= {f"forget_{what}": figure for what, figure in forget.items()}
    if "idle" in parts:
        found["idle_cpu"] = large["idle_cpu"]
    if "export" in parts:
        found["export_growth"] = round(float(str(large["export_us"])) / float(str(small["export_us"])), 2)
    return found


def say(what: str, began: float) -> None:
    print(f"{what}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=1_000_000)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    args = parser.parse_args()
    found: dict[str, object] = {"episodes": [args.small, args.large]}
    if any(part in args.only for part in (*grown.PARTS, "export")):
        found |= compared(of_size(args.small, args.only), of_size(args.large, args.only), args.only)
    for part, made in (
        ("runs", lambda: long_runs.long_run(CALLS)),
        ("ingest", lambda: long_runs.ingest(TURNS)),
        ("streams", lambda: burst.burst(args.streams)),
        ("agree", lambda: agreement.agreement(CASES)),
    ):
        if part in args.only:
            began = time.perf_counter()
            found |= made()
            say(part, began)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
