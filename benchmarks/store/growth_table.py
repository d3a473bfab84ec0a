"""Writes what ``bench_growth.py`` found into benchmarks/RESULTS.md, between its two marks.

    make bench-growth | tail -1 > growth.txt
    python -m benchmarks.store.growth_table growth.txt

Keeps the figures in benchmarks/results/growth.json. Those of a run of some parts (``--only``) take the place of those of before; the others stay.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT, RESULTS = ROOT / "results" / "growth.json", ROOT / "RESULTS.md"
BEGIN, END = "<!-- growth: written by benchmarks/store/growth_table.py -->", "<!-- end of growth -->"

Found = dict[str, object]


def number(found: Found, name: str) -> float:
    value = found[name]
    assert isinstance(value, int | float), name
    return value


def pair(found: Found, name: str, part: str) -> str:
    """The two figures of a route: small and large store."""
    of = found[name]
    assert isinstance(of, dict)
    small, large = of[part]
    return f"{small:.0f} → {large:.0f} ms"


def routes(found: Found) -> str:
    growth = found["route_growth"]
    assert isinstance(growth, dict)
    return "; ".join(f"{route} {pair(found, 'route_ms', route)} ({grown:.2f} ×)" for route, grown in growth.items())


def rows(found: Found) -> list[tuple[str, str, str]]:
    """What, measured, goal."""

    def n(name: str) -> float:
        return number(found, name)

    runs, before = found["runs"], found["runs_small"]
    assert isinstance(runs, dict)
    assert isinstance(before, dict)
    sizes = ", ".join(f"{n(f'{what}_mb'):.1f}" for what in ("page", "batch", "group", "export"))
    return [
        ("first call of 128 new runs at once, two arms, p99", f"{n('pin_p99_ms'):.0f} ms (10⁴: {n('pin_p99_ms_small'):.0f} ms)", "100 ms, 2 ×"),
        ("new runs that the control plane kept waiting too long", f"{n('pins_unanswered'):.0f}", "0"),
        ("new runs a second", f"{runs['a_second']:,} (10⁴: {before['a_second']:,})", "–"),
        ("routes", routes(found), "2 ×"),
        ("CPU while nobody asks", f"{100 * n('idle_cpu'):.1f} % of a core (10⁴: {100 * n('idle_cpu_small'):.1f} %)", "2 %"),
        ("first calls of others while an episode is forgotten, beside before", f"{n('forget_stall'):.2f} ×, for {n('forget_seconds'):.0f} s", "1.5 ×"),
        ("an episode's export", f"{n('export_us'):.0f} µs ({n('export_growth'):.2f} ×)", "1.2 ×"),
        ("a run of 2,000 calls: page, batch, group, export", f"{sizes} MB", "10 MB each"),
        ("the most memory that one of these took", f"{n('long_run_rss_mb'):.0f} MB", "100 MB"),
        ("ingest of a call at turn 150, of 128 conversations beside 8", f"{n('ingest_128_ms'):.1f} ms ({n('ingest_growth'):.2f} ×)", "1.3 ×"),
        (f"{n('streams'):,.0f} streams begun at once: failed, pinned by a worker", f"{n('streams_failed'):.0f}, {n('streams_local_pins'):.0f}", "0, 0"),
        ("their first byte beside a bare relay's, p50", f"{n('streams_first_byte'):.2f} ×", "2 ×"),
        ("local and central pins that agree", f"{n('pins_agree'):,.0f} of {n('pins_asked'):,.0f}", "all"),
    ]  # fmt: skip


def busiest(found: Found) -> str:
    """The parts in whose course others kept the machine busy."""
    loads = found["load"]
    assert isinstance(loads, dict)
    busy = {part: max(load) for part, load in loads.items() if max(load) >= 2}
    if not busy:
        return "Nothing else ran: the load was below 2 throughout."
    return "Load: below 2, but " + ", ".join(f"{part} {load:.0f}" for part, load in busy.items()) + "."


def table(found: Found) -> str:
    lines = ["| 10⁶ episodes on DuckDB, beside 10⁴ | measured | goal |", "|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| {what} | {value} | {goal} |" for what, value, goal in rows(found)), "", busiest(found)]
    )


def merged(before: Found, new: Found) -> Found:
    """What is new takes the place of what was there; loads are those of each part's own run."""
    loads = [found.get("load", {}) for found in (before, new)]
    assert all(isinstance(load, dict) for load in loads)
    return before | new | {"load": loads[0] | loads[1]}  # type: ignore[operator]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("found", type=Path, nargs="*", help="files whose last line is what bench_growth.py printed")
    args = parser.parse_args()
    found: Found = json.loads(KEPT.read_text())
    for file in args.found:
        found = merged(found, json.loads(file.read_text().splitlines()[-1]))
    KEPT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    head, _, rest = RESULTS.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    RESULTS.write_text(f"{head}{BEGIN}\n{table(found)}\n{END}{tail}")


if __name__ == "__main__":
    main()
