"""Thumbs on a tenth of the runs, on a real vLLM: ``python -m benchmarks.gate.live [--runs N] [--out FILE]``.

Agents call through a proxy of default settings. Every version is as good as the base model. Users rate a tenth of the
base model's runs, and half as often what is newer. Real are the engine, its adapters, the proxy, the store and the gate's
clock. Made up are the users, and the pace: an hour of one run a second is played as fast as the machine goes. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from benchmarks.harness import report
from tests.support import vllm
from tests.support.adapters import make_adapter
from tests.support.running import run_proxy

AGENTS = 12
"""Runs at a time."""
SUCCESS, RATED, LATER_RATIO = 0.8, 0.1, 0.5
"""Of every run; share that users rate of the base model's runs; times that share, of later versions' runs."""
WARM_RUNS, VERSION_RUNS = 300, 300
"""Runs before the first version, and between two."""


class Hour:
    def __init__(self, client: httpx.AsyncClient, folder: Path) -> None:
        self.client, self.folder = client, folder
        self.coin = random.Random(0)
        self.made = 0
        self.answered: Counter[str] = Counter()
        self.rated: Counter[str] = Counter()

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        reply = await self.client.request(method, f"/slipstream/v1{path}", json=body)
        return reply.raise_for_status().json()

    async def run(self, n: int) -> None:
        if n >= WARM_RUNS and n % VERSION_RUNS == 0:
            self.made += 1
            make_adapter(self.folder / f"inbox@{self.made}", seed=self.made)
            await self.ask("POST", "/adapters", {"path": f"inbox@{self.made}"})
        body = {"model": "inbox", "messages": [{"role": "user", "content": f"Sort mail {n}."}], "max_tokens": 3}
        reply = await self.client.post("/v1/chat/completions", json=body, headers={"x-slipstream-episode": f"e{n}"})
        name = reply.raise_for_status().headers.get("x-slipstream-adapter", "inbox")
        self.answered[name] += 1
        if self.coin.random() < RATED * (LATER_RATIO if "@" in name else 1.0):
            self.rated[name] += 1
            reward = float(self.coin.random() < SUCCESS)
            await self.ask("POST", f"/episodes/e{n}/rewards", {"value": reward, "done": True})

    async def play(self, runs: int) -> None:
        left = iter(range(runs))

        async def agent() -> None:
            for n in left:
                await self.run(n)

        await asyncio.gather(*(agent() for _ in range(AGENTS)))


async def hour(url: str, folder: Path, runs: int) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        play, began = Hour(client, folder), time.monotonic()
        await play.play(runs)
        took = time.monotonic() - began
        adapters = (await play.ask("GET", "/adapters"))["adapters"]
        trial: dict[str, Any] = next((a for a in adapters if a["state"] == "candidate"), {})
        return {
            "runs": runs,
            "seconds": round(took),
            "versions": play.made,
            "rated": sum(play.rated.values()),
            "states": dict(Counter(a["state"] for a in adapters)),
            "taken_back": sum(a["state"] == "rolled_back" for a in adapters),
            "says": (trial.get("gate") or {}).get("reason") or trial.get("reason"),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3600)
    parser.add_argument("--engine", help="a vLLM that is up with the inbox example's model; default: one is started")
    parser.add_argument("--out", type=Path, help="a JSON file that the figures are added to")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gate-live-") as root:
        folder = Path(root)
        own = contextlib.nullcontext(args.engine) if args.engine else vllm(folder / "engine.log")
        gate: dict[str, Any] = {"holdout": 0.1}
        with own as engine, run_proxy(folder, engine, gate=gate, adapters={"dir": str(folder / "adapters")}) as running:
            found = {
                "live: thumbs on a tenth, equal versions": asyncio.run(
                    hour(running.url, folder / "adapters", args.runs)
                )
            }
    if args.out:
        args.out.write_text(json.dumps(json.loads(args.out.read_text()) | found, indent=1) + "\n")
    report(found)


if __name__ == "__main__":
    main()
