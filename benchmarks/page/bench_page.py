# ruff: noqa: E402 - the path comes first
"""How fast the page is with many episodes: python benchmarks/page/bench_page.py [--episodes 100000] [--serve]

Makes a store with SQL, opens each view in Chromium with an empty cache, and measures from the navigation to the first
paint, and to the view that holds its data. Then each request that the first views make, at the server. Two minutes.
``--serve`` waits at the end, for a look. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks" / "store")]

from filling import CALLS, name_of
from grown import filled, settings
from tests.support.browser import browser
from tests.support.fake_engine import LoraEngine
from tests.support.plane import Plane

from slipstream_proxy.control import page as files

ROUNDS = 5
ROWS = "document.querySelectorAll('tbody tr[data-id]').length > 10"
DRAWN = "document.querySelectorAll('.chart canvas').length > 0"
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
ASKED = (
    "/status", "/episodes?limit=100", "/episodes?limit=5", "/adapters", "/learning?by=adapter", "/learning?by=time", "/groups?limit=50",
    "/labels/queue", "/episodes?q=nothing-holds-this", "/episodes?tag=lang:en", "/episodes?reward_min=0.9",
)  # fmt: skip


def views(episodes: int) -> dict[str, tuple[str, str]]:
    """View → where it is, and what is there when it holds its data."""
    one = f"document.querySelectorAll('[role=treeitem]').length === {CALLS}"
    return {
        "now": ("#/now", "!!document.querySelector('.funnel')"),
        "episodes": ("#/episodes", ROWS),
        "episode": (f"#/episode/{name_of(episodes // 2)}", one),
        "groups": ("#/groups", ROWS),
        "training": ("#/training", DRAWN),
        "label": ("#/label", "location.hash.length > 12"),
    }


async def at_the_server(plane: Plane) -> dict[str, float]:
    """Path → milliseconds, the median."""
    found = {}
    for path in ASKED:
        took = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            status, body = await plane.ask("GET", path)
            assert status == 200, body
            took.append((time.perf_counter() - began) * 1000)
        found[path] = round(statistics.median(took), 1)
    return found


async def in_the_browser(plane: Plane, folder: Path, episodes: int) -> dict[str, float]:
    """View → milliseconds from the navigation to its data, and to the first paint; medians."""
    home = str(plane.client.make_url("/"))
    found: dict[str, float] = {}
    async with browser(folder, "about:blank") as page:
        await page.ask("Network.enable")
        await page.ask("Network.setExtraHTTPHeaders", headers=plane.as_())
        await page.ask("Network.setCacheDisabled", cacheDisabled=True)
        await page.screen(1440)
        for name, (where, there) in views(episodes).items():
            took, painted = [], []
            for _ in range(ROUNDS):
                await page.go(home + where)
                await page.until("!!document.body")
                await page.until(there, 60.0)
                took.append(await page.js("performance.now()"))
                painted.append(await page.until(PAINT))
            print(name, took, flush=True)
            found |= {
                f"{name}_ms": round(statistics.median(took)),
                f"{name}_paint_ms": round(statistics.median(painted)),
            }
    return found


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--serve", action="store_true", help="wait at the end")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine = await LoraEngine().start()
        filled(Path(folder), args.episodes).close()
        plane = Plane(settings(Path(folder), engine), engine)
        await plane.start()
        try:
            server = await at_the_server(plane)
            seen = await in_the_browser(plane, Path(folder), args.episodes)
            packed = sum(
                len(gzip.compress((files.PAGE_FOLDER / name).read_bytes())) for name, _ in files.PAGE_FILES.values()
            )
            found = {"episodes": args.episodes, "first_view_kb": round(packed / 1000, 1), **seen, "server_ms": server}
            print(json.dumps(found), flush=True)
            if args.serve:
                print(plane.client.make_url("/"), flush=True)
                await asyncio.Event().wait()
        finally:
            await plane.stop()
            await engine.stop()


if __name__ == "__main__":
    asyncio.run(main())
