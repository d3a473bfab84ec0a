"""The gate live: a proxy with a real vLLM on the CPU, and scripted agents that declare their own rewards.

``python benchmarks/gate/live.py`` plays six cases, each on a proxy of its own: a better version that takes longer and one
that hangs; another scale of rewards; one customer of five; reward up and a second reward down; a promotion by hand; held-out
runs that double. The last line is one JSON object. ``--only CASE`` plays one; ``--engine URL`` uses a vLLM that is up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from tests.support import slipstream, vllm
from tests.support.adapters import make_adapter
from tests.support.running import Running, run_proxy

AT_ONCE = 12
"""Runs at a time."""
PATIENCE = 240.0
"""Seconds of a case."""
Score = Callable[[str, dict[str, str], random.Random], float | None]
"""(adapter, the run's tags, coin) → reward; None: the run never gets one."""


@dataclass
class Play:
    """A proxy, and what its agents saw."""

    running: Running
    folder: Path
    client: httpx.AsyncClient
    coin: random.Random = field(default_factory=lambda: random.Random(0))
    number: itertools.count[int] = field(default_factory=itertools.count)
    got: dict[str, list[str]] = field(default_factory=dict)
    """Phase → the adapter of each of its runs."""

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        reply = await self.client.request(method, f"/slipstream/v1{path}", json=body)
        return reply.raise_for_status().json()

    async def register(self, version: int) -> None:
        make_adapter(self.folder / "adapters" / f"inbox@{version}", seed=version)
        await self.ask("POST", "/adapters?wait=60", {"path": f"inbox@{version}"})

    async def adapter(self, version: int) -> dict[str, Any]:
        found = (await self.ask("GET", "/adapters"))["adapters"]
        return next(a for a in found if a["version"] == version)

    async def run(
        self, phase: str, score: Score, seconds: Callable[[str], float], split: str, polite: Score | None
    ) -> None:
        n = next(self.number)
        tags = {"customer": f"c{n % 5}"}
        name = f"{phase}-{n}"
        headers = {
            "x-slipstream-episode": name,
            "x-slipstream-split": split,
            "x-slipstream-tag-customer": tags["customer"],
        }
        messages = [{"role": "user", "content": f"Sort mail {n}."}]
        body = {"model": "inbox", "messages": messages, "max_tokens": 3}
        reply = await self.client.post("/v1/chat/completions", json=body, headers=headers)
        reply.raise_for_status()
        adapter = reply.headers.get("x-slipstream-adapter", "inbox")
        self.got.setdefault(phase, []).append(adapter)
        await asyncio.sleep(seconds(adapter))
        path = f"/episodes/{name}/rewards"
        if polite is not None:
            await self.ask("POST", path, {"value": polite(adapter, tags, self.coin), "name": "polite"})
        if (value := score(adapter, tags, self.coin)) is not None:
            await self.ask("POST", path, {"value": value})

    async def runs(
        self,
        phase: str,
        most: int,
        score: Score,
        until: Callable[[], Awaitable[bool]] | None = None,
        seconds: Callable[[str], float] = lambda _: 0.0,
        split: str = "train",
        polite: Score | None = None,
    ) -> float:
        """Up to ``most`` runs. → Seconds until ``until``; inf: it never came."""
        began, left, over = time.monotonic(), iter(range(most)), False

        async def agent() -> None:
            for _ in left:
                if over or time.monotonic() - began > PATIENCE:
                    return
                await self.run(phase, score, seconds, split, polite)

        async def look() -> float:
            while until is not None and time.monotonic() - began < PATIENCE:
                if await until():
                    return time.monotonic() - began
                await asyncio.sleep(0.5)
            return float("inf")

        looking = asyncio.create_task(look())
        agents = asyncio.gather(*(agent() for _ in range(AT_ONCE)))
        if until is None:
            await agents
            looking.cancel()
            return time.monotonic() - began
        await asyncio.wait({looking, asyncio.ensure_future(agents)}, return_when=asyncio.FIRST_COMPLETED)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(looking), 20.0)
        over = True
        await agents
        return looking.result() if looking.done() else float("inf")

    def is_state(self, version: int, *states: str) -> Callable[[], Awaitable[bool]]:
        async def look() -> bool:
            return (await self.adapter(version))["state"] in states

        return look


def often(share: dict[str, float], otherwise: float) -> Score:
    return lambda adapter, _, coin: float(coin.random() < share.get(adapter, otherwise))


async def slower(play: Play) -> dict[str, Any]:
    """@1 takes three times as long and is better; @2 hangs."""
    good = often({"inbox@1": 0.95}, 0.5)
    long = lambda adapter: 3.0 if adapter == "inbox@1" else 1.0  # noqa: E731
    await play.runs("before", 60, good, seconds=lambda _: 1.0)
    await play.register(1)
    took = await play.runs("slower", 400, good, play.is_state(1, "live", "rolled_back"), long)
    slow = await play.adapter(1)
    await play.register(2)
    hangs: Score = lambda adapter, tags, coin: None if adapter == "inbox@2" else good(adapter, tags, coin)  # noqa: E731
    hung = await play.runs("hangs", 600, hangs, play.is_state(2, "rolled_back"), long)
    found = await play.adapter(2)
    return {
        "slower": slow["state"], "slower_reason": slow["reason"], "seconds": round(took, 1),
        "hanging": found["state"], "hanging_reason": found["reason"], "hanging_seconds": round(hung, 1),
        "holds": slow["state"] != "rolled_back" and found["state"] == "rolled_back",
    }  # fmt: skip


async def rescale(play: Play) -> dict[str, Any]:
    """Rewards of 0 and 100; from @1 on 0 and 1, and @1 always gets 0."""
    await play.runs("before", 120, lambda _, __, c: 100.0 * (c.random() < 0.7))
    await play.register(1)
    until = play.is_state(1, "live", "rolled_back")
    await play.runs("after", 300, lambda a, _, c: float(a != "inbox@1" and c.random() < 0.7), until)
    found = await play.adapter(1)
    gate = found["gate"] or {}
    said = found["reason"] or gate.get("reason")
    return {"state": found["state"], "says": said, "holds": found["state"] in ("candidate", "rolled_back")}


async def group(play: Play) -> dict[str, Any]:
    """@1 fails for c0 and gains elsewhere: taken back for c0 alone."""
    score: Score = lambda a, t, c: (  # noqa: E731
        float(t["customer"] != "c0") if a == "inbox@1" else float(c.random() < 0.8)
    )
    await play.runs("before", 150, score)
    await play.register(1)

    async def kept() -> bool:
        return bool((await play.adapter(1))["kept_from"])

    took = await play.runs("trial", 900, score, kept)
    await asyncio.sleep(1.0)
    first = next(play.number)
    play.number = itertools.count(first + 1)
    await play.runs("after", 50, score)
    served = {c: [] for c in range(5)}  # type: dict[int, list[str]]
    for i, adapter in enumerate(play.got["after"]):
        served[(first + 1 + i) % 5].append(adapter)
    pages = await play.ask("GET", "/episodes?limit=200")
    mine = [e for e in pages["episodes"] if e["id"].startswith("after-") and e["tags"].get("customer") == "c0"]
    others = [e for e in pages["episodes"] if e["id"].startswith("after-") and e["tags"].get("customer") != "c0"]
    found, status = await play.adapter(1), await play.ask("GET", "/status")
    line = next((x["text"] for x in status["funnel"]["lines"] if x["cause"] == "group"), "")
    return {
        "kept_from": found["kept_from"], "state": found["state"], "seconds": round(took, 1), "status": line,
        "c0_on_version": sum(e["adapter"] == "inbox@1" for e in mine), "c0": len(mine),
        "others_on_version": sum(e["adapter"] == "inbox@1" for e in others), "others": len(others),
        "holds": bool(mine) and all(e["adapter"] == "inbox" for e in mine) and any(e["adapter"] == "inbox@1" for e in others),
    }  # fmt: skip


async def guard(play: Play) -> dict[str, Any]:
    """Reward up, a second reward down: the version freezes, and a person unfreezes it."""
    score, polite = often({"inbox@1": 0.9}, 0.7), often({"inbox@1": 0.1}, 0.95)
    await play.runs("before", 60, score, polite=polite)
    await play.register(1)

    async def frozen() -> bool:
        gate = (await play.adapter(1))["gate"]
        return bool(gate) and gate["reason"].startswith("frozen")

    took = await play.runs("trial", 500, score, frozen, polite=polite)
    said = (await play.adapter(1))["gate"]["reason"]
    text = (await play.client.get("/metrics")).text
    after = await play.ask("POST", "/adapters/inbox@1/unfreeze", {"reason": "looked at"})
    return {
        "says": said, "seconds": round(took, 1), "metric": 'slipstream_gate_frozen{model="inbox"} 1.0' in text,
        "unfrozen": after["frozen"] is False, "holds": said.startswith("frozen"),
    }  # fmt: skip


async def by_hand(play: Play) -> dict[str, Any]:
    """@1 is promoted while @2 is on trial: 30 new runs get @1. The command says so before."""
    score = often({}, 0.7)
    await play.runs("before", 24, score)
    for version in (1, 2):
        await play.register(version)
    command = slipstream("adapters", "promote", "inbox@1", "--url", play.running.url)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said = (await process.communicate())[0].decode().splitlines()
    for _ in range(40):
        if await play.is_state(1, "live")():
            break
        await asyncio.sleep(0.5)
    await asyncio.sleep(1.0)
    await play.runs("after", 30, score)
    return {
        "said": said, "after": {a: play.got["after"].count(a) for a in set(play.got["after"])},
        "other": (await play.adapter(2))["state"],
        "holds": set(play.got["after"]) == {"inbox@1"} and any("inbox@2" in one for one in said),
    }  # fmt: skip


async def best(play: Play) -> dict[str, Any]:
    """Held-out success doubles: the base keeps fewer runs. And no word without a finished run."""
    score = often({"inbox@1": 0.8, "inbox@2": 0.8}, 0.4)
    await play.runs("before", 24, score)
    await play.runs("base", 40, score, split="eval")
    await play.register(1)

    async def shrunk() -> bool:
        await play.ask("GET", "/adapters")
        return await share() < 0.2

    async def share() -> float:
        gate = (await play.adapter(1))["gate"] or {}
        return float(gate.get("control_share", 1.0)) + float(gate.get("best_share", 0.0))

    while not (silent := (await play.adapter(1))["gate"]):
        await asyncio.sleep(0.5)
    before = await share()
    await play.runs("one", 40, score, split="eval")
    await play.runs("more", 8, score, shrunk)
    await asyncio.sleep(12.0)
    after = await share()
    return {"share_before": before, "share_after": after, "says": silent["reason"], "holds": after < before}


CASES: dict[str, tuple[Callable[[Play], Awaitable[dict[str, Any]]], dict[str, Any]]] = {
    "slower": (slower, {"holdout": 0.3, "deadline": 10.0, "settle": 150}),
    "rescale": (rescale, {"settle": 100}),
    "group": (group, {"holdout": 0.4, "group_verdict": "group", "by": ["tag.customer"], "settle": 2000}),
    "guard": (guard, {"holdout": 0.3, "guards": {"reward.polite": "down"}, "settle": 2000}),
    "by_hand": (by_hand, {"holdout": 0.3, "pace": "go"}),
    "best": (best, {}),
}


async def play_case(name: str, engine: str, folder: Path) -> dict[str, Any]:
    case, gate = CASES[name]
    with run_proxy(
        folder, engine, gate=gate | {"holdout": gate.get("holdout", 0.1)}, adapters={"dir": str(folder / "adapters")}
    ) as running:
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=running.url, timeout=120, limits=limits, trust_env=False) as client:
            return await case(Play(running, folder, client))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(CASES), action="append")
    parser.add_argument("--engine", help="a vLLM that is up with the inbox example's model; default: one is started")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="gate-live-") as root:
        own = contextlib.nullcontext(args.engine) if args.engine else vllm(Path(root) / "engine.log")
        with own as engine:
            for name in args.only or CASES:
                began = time.monotonic()
                found[name] = asyncio.run(play_case(name, engine, Path(root) / name))
                print(f"{name}, {time.monotonic() - began:.0f} s: {json.dumps(found[name])}", flush=True)
                if args.out:
                    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    return 0 if all(one["holds"] for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
