"""Reads files of every known form, and compares what comes in with what they hold. Each is brought into a proxy, too:
what is new, what is there when it comes again, and what changes when its rewards do. Last line: JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, report
from benchmarks.imports.again import Standing, proxy, standing
from benchmarks.imports.corpus import Held, written

from slipstream.chat.report import Report
from slipstream_imports.upload import read_log

IMPORTS_RESULT = RESULTS / "imports.json"


def counted(path: Path) -> tuple[Held, Report]:
    found = Report()
    for entry in read_log([path], None, found):
        found.take(entry.counts)
    return Held(found.episodes, found.calls, found.tool_calls, found.rewards, len(found.refused)), found


async def measure(folder: Path, url: str) -> dict[str, Any]:
    began = time.perf_counter()
    rows: dict[str, Any] = {}
    forms: set[str] = set()
    seen: list[Standing] = []
    equal = lost = 0
    files_there = written(folder)
    await standing(url, files_there[0][0], "warm-up")  # without an engine, a proxy's first records wait for 15 s
    for path, file in files_there:
        found, told_of = counted(path)
        forms.add(file.form)
        stood = await standing(url, path, f"k{len(seen)}")
        seen.append(stood)
        rewarded = file.held.episodes if file.held.rewards else 0
        same = found == file.held and stood[:2] == (file.held.episodes,) * 2 and stood.changed <= rewarded
        same = same and (stood.changed > 0) == (rewarded > 0)
        equal += same
        notes = len(told_of.refused) + told_of.dropped.total()
        missing = sum(max(0, a - b) for a, b in zip(file.held[:4], found[:4], strict=True))
        lost += missing if not notes else 0
        if not same:
            told = {"held": file.held._asdict(), "found": found._asdict(), "standing": stood._asdict()}
            rows[file.name] = {**told, "lines": told_of.lines()[:5]}
        print(
            f"{'ok ' if same else 'BAD'} {file.form:14} {file.name:40} {found.episodes} {found.calls} {found.tool_calls} {found.rewards}"
            f" | new {stood.new} there {stood.there} changed {stood.changed} on side branches {stood.side_branches}"
        )
    files = len(list(folder.iterdir()))
    summary = {"files": files, "forms": len(forms), "equal": equal, "lost_silently": lost, "different": rows}
    summary |= {name: sum(getattr(one, name) for one in seen) for name in Standing._fields}
    return summary | {"seconds": round(time.perf_counter() - began, 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=IMPORTS_RESULT)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as data:

        async def run() -> dict[str, Any]:
            async with proxy(Path(data)) as url:
                return await measure(Path(folder), url)

        result = asyncio.run(run())
    report(result, args.out)
    return 0 if result["equal"] == result["files"] and not result["lost_silently"] else 1


if __name__ == "__main__":
    sys.exit(main())
