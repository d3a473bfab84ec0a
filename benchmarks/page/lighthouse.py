# ruff: noqa: E402 - the path comes first
"""Lighthouse's scores of each view, with the data of a day: python benchmarks/page/lighthouse.py [--mobile] [--only now]

Needs Chromium, npm, and the network once, for the package ``lighthouse``. Five minutes. Exits with 1 if a view has less than
95 for performance or 100 for accessibility. ``--mobile``: a slow phone instead of a desk. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.browser import CHROMIUM
from tests.support.fake_engine import LoraEngine
from tests.support.page_data import PLANE, make_demo
from tests.support.plane import Plane, make_config

PACKAGE = "lighthouse@12.8.2"
LOADED_MS = 12_000
"""How long Lighthouse waits for a silent network: the page listens to the proxy's events as long as it is open."""
LEAST = {"performance": 95, "accessibility": 100}
VIEWS = {
    "now": "now", "episodes": "episodes", "episode": "episode/tangle", "groups": "groups", "group": "group/{group}",
    "adapters": "adapters?adapter=tiny%403", "training": "training", "judge": "judge", "label": "label", "audit": "audit",
    "tasks": "tasks", "cost": "cost", "compare": "compare?left=-%2Frun-1-0&right=-%2Frun-1-1",
}  # fmt: skip


async def scores(url: str, headers: Path, *, mobile: bool) -> dict[str, int]:
    """Category → score, 0 to 100."""
    argv = [
        "npm", "exec", "--yes", f"--package={PACKAGE}", "--", "lighthouse", url, "--quiet", "--output=json",
        f"--only-categories={','.join(LEAST)}", f"--extra-headers={headers}", f"--max-wait-for-load={LOADED_MS}",
        "--chrome-flags=--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-proxy-server",
        *([] if mobile else ["--preset=desktop"]),
    ]  # fmt: skip
    env = {**os.environ, "CHROME_PATH": str(CHROMIUM)}
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE, env=env, cwd=headers.parent)
    told, _ = await process.communicate()
    assert process.returncode == 0, f"lighthouse ended with {process.returncode}"
    report = json.loads(told)
    for name, audit in report["audits"].items():
        if audit["scoreDisplayMode"] == "binary" and audit["score"] == 0:
            print(f"   {name}: {audit['title']}", flush=True)
    for ref in report["categories"]["performance"]["auditRefs"]:
        audit = report["audits"][ref["id"]]
        if ref["weight"] and (audit["score"] or 0) < 0.9:
            print(f"   {audit['title']}: {audit.get('displayValue')}", flush=True)
    return {name: round(100 * found["score"]) for name, found in report["categories"].items()}


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mobile", action="store_true")
    parser.add_argument("--only", choices=VIEWS, action="append")
    args = parser.parse_args()
    found: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        engine = await LoraEngine().start()
        plane = await Plane(make_config(Path(folder), engine, **PLANE), engine).start()
        try:
            await make_demo(plane)
            group = (await plane.ask("GET", "/groups?task=inbox-2&state=trained"))[1]["groups"][0]["id"]
            headers = Path(folder) / "headers.json"
            headers.write_text(json.dumps(plane.as_()))
            for name in args.only or VIEWS:
                url = f"{plane.client.make_url('/')}#/{VIEWS[name].format(group=group)}"
                found[name] = await scores(url, headers, mobile=args.mobile)
                print(f"{name:10} {found[name]}", flush=True)
        finally:
            await plane.stop()
            await engine.stop()
    print(json.dumps({"lighthouse": found, "mobile": args.mobile}))
    return int(any(view[name] < least for view in found.values() for name, least in LEAST.items()))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
