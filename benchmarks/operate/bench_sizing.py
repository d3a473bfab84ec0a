# ruff: noqa: E402 - the path comes first
"""The figures of the sizing table in docs/operations.md: python benchmarks/operate/bench_sizing.py [--seconds 10]

Proxy and store against an engine that answers at once (``benchmarks/proxy/mock.c`` is for speed beside nginx; this one is for what a machine needs): calls a
second of one worker, bytes of spool and store for a thousand calls of agents' conversations, and the memory of each process: proxy parent, worker, control
plane, judge, trainer. Calls a minute of the judge beside a model that takes a second, tokens a second of the trainer on this machine. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import aiohttp
import httpx
from tests.support import MODEL, free_port, process, slipstream, wait_for
from tests.support.fake_engine import FakeEngine
from tests.support.ruled_judge import RuledJudge
from tests.support.served import Served

from slipstream.client import Client
from slipstream.contract import RewardIn

WORDS = ("the meeting with dana moved to thursday and the room is the small one upstairs " * 8).split()


class Engine(FakeEngine):
    """Replies of 64 tokens for a prompt of as many tokens as the conversation has words, ids within the small model's vocabulary."""

    async def chat(self, request: Any) -> Any:
        from aiohttp import web

        body = await self._body(request)
        prompt = [3 + sum(w.encode()) % 200 for m in body["messages"] for w in (m["content"] or "").split()]
        ids = [3 + (len(prompt) * 7 + i * 13) % 200 for i in range(64)]
        text = " ".join(WORDS[:48])
        logprobs = {"content": [{"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []} for _ in ids]}
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "logprobs": logprobs,
            "finish_reason": "stop",
            "token_ids": ids,
        }
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
        return web.json_response(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": body["model"],
                "choices": [choice],
                "usage": usage,
                "prompt_token_ids": prompt,
            }
        )


async def agent(
    session: aiohttp.ClientSession, url: str, name: str, turns: int, deadline: float, done: list[float]
) -> None:
    """Episodes of ``turns`` calls, each re-sending its history, until the time is over."""
    n = 0
    while time.monotonic() < deadline:
        messages: list[dict[str, str]] = [{"role": "system", "content": " ".join(WORDS[:60])}]
        headers = {"x-slipstream-episode": f"{name}-{n}", "x-slipstream-task": f"t{n // 4}"}
        for turn in range(turns):
            messages.append({"role": "user", "content": " ".join(WORDS[turn : turn + 30])})
            began = time.monotonic()
            async with session.post(
                url + "/v1/chat/completions", json={"model": "tiny", "messages": messages}, headers=headers
            ) as reply:
                read = await reply.json()
            done.append(time.monotonic() - began)
            messages.append({"role": "assistant", "content": read["choices"][0]["message"]["content"]})
        n += 1


def memory_mib(pid: int) -> float:
    """Resident set without what it shares with others, of a process."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines() if line.endswith("kB")}
    return (found["Private_Clean"] + found["Private_Dirty"]) / 1024


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> dict[int, str]:
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found[int(child)] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
    return found


@contextlib.contextmanager
def proxy(folder: Path, upstream: str, **more: Any) -> Iterator[tuple[str, Any, Path]]:
    tree = {
        "data_dir": str(folder / "data"),
        "proxy": {"port": 0, "durability": "process"},
        "engine": {"urls": [upstream], "name": "tiny"},
        **more,
    }
    config = folder / "slipstream.toml"
    config.write_text(tomli_w.dumps(tree))
    with process(slipstream("proxy", "--config", str(config)), folder / "proxy.log") as p:

        def up() -> str:
            url = json.loads((folder / "data" / "proxy.json").read_text())["url"]
            return url if httpx.get(url + "/readyz", timeout=5, trust_env=False).is_success else ""

        yield wait_for(up, 90, 0.1, "the proxy is ready"), p, config


async def traffic(seconds: float, agents: int, turns: int) -> dict[str, float]:
    """One worker under agents; then what the spool and the store hold of it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        engine = await Engine().start()
        try:
            with contextlib.ExitStack() as stack:
                url, p, _ = await asyncio.to_thread(stack.enter_context, proxy(folder, engine.url))
                pids = {("worker" if "data.worker" in c else "control"): pid for pid, c in children(p.pid).items()}
                done: list[float] = []
                before = cpu_seconds(pids["worker"])
                began = time.monotonic()
                async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
                    await asyncio.gather(
                        *(agent(session, url, f"a{i}", turns, began + seconds, done) for i in range(agents))
                    )
                spent = time.monotonic() - began
                cpu = cpu_seconds(pids["worker"]) - before
                spool = sum(f.stat().st_size for f in (folder / "data" / "spool").glob("data*.seg"))
                with Client(url) as client:
                    await asyncio.to_thread(
                        wait_for, lambda: client.status().calls >= len(done), 120, 0.2, "all calls are stored"
                    )
                memory = {name: memory_mib(pid) for name, pid in pids.items()} | {"parent": memory_mib(p.pid)}
            store = sum(f.stat().st_size for f in (folder / "data").glob("slipstream.duckdb*"))
        finally:
            await engine.stop()
    return {
        "calls": len(done), "calls_per_second": len(done) / spent, "worker_cpu_us_per_call": cpu / len(done) * 1e6, "calls_per_second_of_a_worker": len(done) / cpu, "p50_ms": statistics.median(done) * 1e3,
        "spool_bytes_per_call": spool / len(done), "store_bytes_per_1000_calls": store / len(done) * 1000,
        **{f"{name}_mib": mib for name, mib in memory.items()},
    }  # fmt: skip


async def workers(groups: int, size: int) -> dict[str, float]:
    """Judge and trainer beside a proxy: calls a minute at one second each, tokens a second, memory."""
    with tempfile.TemporaryDirectory() as scratch, Served(RuledJudge(latency=1.0).app()) as judge_url:
        folder, ports = Path(scratch), (free_port(), free_port())
        engine = await Engine().start()
        try:
            parts = {
                "engine": {"urls": [engine.url], "name": "tiny", "model": str(MODEL)}, "groups": {"size": size}, "trainer": {"metrics_port": ports[1], "min_groups": 4, "threads": 2, "max_ratio": 1e9, "max_kl": 1e9},
                "judge": {"model": "openai/ruled", "api_base": judge_url + "/v1", "api_key_env": "SIZING_KEY", "metrics_port": ports[0], "concurrency": 8},
            }  # fmt: skip
            with contextlib.ExitStack() as stack:
                url, _, config = await asyncio.to_thread(stack.enter_context, proxy(folder, engine.url, **parts))
                await fill(url, groups, size)
                argv = ["--config", str(config), "--url", url]
                judge = stack.enter_context(
                    process(slipstream("judge", *argv), folder / "judge.log", {"SIZING_KEY": "none"})
                )
                judged = await asyncio.to_thread(watch, ports[0], "slipstream_judge_calls_total", groups)
                judge_mib = memory_mib(judge.pid)
                trainer = stack.enter_context(process(slipstream("trainer", *argv), folder / "trainer.log"))
                await asyncio.to_thread(watch, ports[1], "slipstream_trainer_batches_total", 1)
                with Client(url) as client:
                    steps = [e.data for e in client.events() if e.kind in ("step", "skipped")]
                trainer_mib = memory_mib(trainer.pid)
        finally:
            await engine.stop()
    return {
        "judge_calls_per_minute": judged, "judge_mib": judge_mib, "trainer_mib": trainer_mib,
        "trainer_tokens_per_second": max(float(s.get("tokens_per_second") or 0) for s in steps),
    }  # fmt: skip


async def fill(url: str, groups: int, size: int) -> None:
    """Complete groups with rewards of their own that differ."""
    async with aiohttp.ClientSession() as session:
        for g in range(groups):
            for i in range(size):
                headers = {"x-slipstream-episode": f"g{g}-{i}", "x-slipstream-task": f"g{g}"}
                body = {
                    "model": "tiny",
                    "messages": [{"role": "user", "content": f"{g} {i} " + " ".join(WORDS[:60])}],
                }
                async with session.post(url + "/v1/chat/completions", json=body, headers=headers) as reply:
                    await reply.read()
    with Client(url) as client:
        for g in range(groups):
            for i in range(size):
                client.add_reward(f"g{g}-{i}", RewardIn(value=float(i % 2)))
                client.done(f"g{g}-{i}")


def watch(port: int, name: str, wanted: int) -> float:
    """Until a counter has reached ``wanted``; → its rate a minute from its first to its last change."""
    changes: list[tuple[float, float]] = []

    def total() -> float:
        try:
            text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=5, trust_env=False).text
        except httpx.HTTPError:
            return 0.0
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))

    end = time.monotonic() + 300
    while time.monotonic() < end and (now := total()) < wanted:
        if now and (not changes or changes[-1][1] != now):
            changes.append((time.monotonic(), now))
        time.sleep(0.05)
    changes.append((time.monotonic(), now))
    (first, low), (last, high) = changes[0], changes[-1]
    return (high - low) / (last - first) * 60 if last > first else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--agents", type=int, default=32)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--groups", type=int, default=48)
    args = parser.parse_args()
    found = {"cpus": os.cpu_count(), "load": os.getloadavg()[0]}
    found |= asyncio.run(traffic(args.seconds, args.agents, args.turns))
    found |= asyncio.run(workers(args.groups, 8))
    for name, value in found.items():
        print(f"{name:32} {value:,.1f}" if isinstance(value, float) else f"{name:32} {value}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
