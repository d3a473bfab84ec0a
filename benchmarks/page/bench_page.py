# ruff: noqa: E402 - the path comes first
"""How fast the page is with many episodes: python benchmarks/page/bench_page.py [--episodes 100000] [--serve]

Fills the store of a control plane by its spool, opens the page in Chromium with an empty cache, and measures from the navigation to the first paint, and to
the view that holds its data. Then the same of each request that the first views make, at the server. ``--serve`` waits at the end, for a look or
for Lighthouse. The last line is one JSON object.
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
sys.path.insert(0, str(ROOT))

from tests.support.browser import browser
from tests.support.fake_engine import LoraEngine
from tests.support.plane import Plane, make_config

from slipstream_proxy.control import page as files

ROUNDS = 5
ROWS = "document.querySelectorAll('tbody tr[data-id]').length > 10"
VIEWS = {"now": ("#/now", "!!document.querySelector('.funnel')"), "episodes": ("#/episodes", ROWS)}
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
ASKED = ("/status", "/episodes?limit=100", "/episodes?limit=5", "/success", "/adapters", "/learning?by=adapter")


async def fill(plane: Plane, episodes: int) -> None:
    began = time.monotonic()
    for n in range(episodes):
        await plane.call(f"e{n:06}", task=f"t{n % 200}", text=f"mail {n} of the day", done=True)
        if n % 10_000 == 9999:
            print(f"{n + 1} calls spooled, {time.monotonic() - began:.0f} s", flush=True)
    while (await plane.ask("GET", "/status"))[1]["calls"] < episodes:
        await asyncio.sleep(1.0)
    print(f"{episodes} episodes in the store, {time.monotonic() - began:.0f} s", flush=True)


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


async def in_the_browser(plane: Plane, folder: Path) -> dict[str, float]:
    """View → milliseconds from the navigation to its data, and to the first paint; medians."""
    home = str(plane.client.make_url("/"))
    found: dict[str, float] = {}
    async with browser(folder, "about:blank") as page:
        await page.ask("Network.enable")
        await page.ask("Network.setExtraHTTPHeaders", headers=plane.as_())
        await page.ask("Network.setCacheDisabled", cacheDisabled=True)
        await page.screen(1440)
        for name, (where, there) in VIEWS.items():
            took, painted = [], []
            for _ in range(ROUNDS):
                await page.go(home + where)
                await page.until("!!document.body")
                await page.until(there)
                took.append(await page.js("performance.now()"))
                painted.append(await page.until(PAINT))
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
        engine = LoraEngine()
        await engine.start()
        plane = await Plane(make_config(Path(folder), engine, groups={"size": 8}), engine).start()
        try:
            await fill(plane, args.episodes)
            server = await at_the_server(plane)
            seen = await in_the_browser(plane, Path(folder))
            packed = sum(len(gzip.compress((files.HERE / name).read_bytes())) for name, _ in files.FILES.values())
            print(
                json.dumps(
                    {"episodes": args.episodes, "first_view_kb": round(packed / 1000, 1), **seen, "server_ms": server}
                )
            )
            if args.serve:
                print(plane.client.make_url("/"), flush=True)
                await asyncio.Event().wait()
        finally:
            await plane.stop()
            await engine.stop()


if __name__ == "__main__":
    asyncio.run(main())
