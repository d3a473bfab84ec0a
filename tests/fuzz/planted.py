"""Traffic with a secret in every call and write, through a whole proxy with ``proxy.redact``; then all its files are searched for pieces.

    python tests/fuzz/planted.py [--seconds 600] [--at-once 16]

The last line is one JSON object: calls and writes by field, seconds, bytes searched by place, and pieces found, of which there are to be none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.planted_traffic import SayingEngine, Scan, Sender, files, read
from tests.support.running import run_proxy


async def traffic(url: str, seconds: float, at_once: int, seed: int) -> Counter[str]:
    """Cases by field."""
    until, fields = time.monotonic() + seconds, Counter[str]()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:

        async def send(number: int) -> None:
            sender = Sender(url, session, random.Random(f"{seed}-{number}"), first=number * 10**6)
            while time.monotonic() < until:
                await sender.one()
            fields.update(sender.fields)

        await asyncio.gather(*(send(number) for number in range(at_once)))
    return fields


async def searched(url: str, folder: Path, scan: Scan) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        await read(scan, session, url)
        async with session.get(f"{url}/slipstream/v1/backup") as reply:
            scan.look("backup", await reply.read())
    await asyncio.sleep(1.0)
    scan.look("log", (folder / "proxy.log").read_bytes())


async def run(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    scan, engine = Scan(), await SayingEngine(random.Random(options.seed)).start()
    sections = {
        "proxy": {"port": 0, "workers": 2, "redact": "tests.support.planted:redact", "metric_tags": ["user", "x"]},
        "engine": {"urls": [engine.url], "name": "tiny", "kind": "vllm"},
        "groups": {"size": 2}, "reward": {"weights": {"judge": 1.0}}, "identity": {"traceparent": True},
    }  # fmt: skip
    os.environ["SLIPSTREAM_LOG_LEVEL"] = "DEBUG"
    try:
        started = time.monotonic()
        running = await asyncio.to_thread((manager := run_proxy(folder, engine.url, **sections)).__enter__)
        try:
            fields = await traffic(running.url, options.seconds, options.at_once, options.seed)
            took = time.monotonic() - started
            await searched(running.url, folder, scan)
        finally:
            await asyncio.to_thread(manager.__exit__, None, None, None)
        files(scan, running.data_dir)
    finally:
        await engine.stop()
    told = {"cases": sum(fields.values()), "fields": fields, "seconds": round(took, 1), "bytes": scan.places}
    return {**told, "pieces": len(scan.found), "first": [(place, repr(piece)) for place, piece in scan.found[:3]]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slipstream-planted-") as folder:
        result = asyncio.run(run(Path(folder), options))
    print(json.dumps(result))
    return int(bool(result["pieces"]))


if __name__ == "__main__":
    sys.exit(main())
