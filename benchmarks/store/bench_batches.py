"""How long a trainer waits for a batch of 1,000 episodes while calls are written: one JSON line.

``python -m benchmarks.store.bench_batches [--rate 200] [--url postgresql://…]``. A control plane of its own process reads a spool that this process
writes to at ``rate`` calls a second; batches are leased over its socket as Arrow and given back. Takes about a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
from benchmarks.harness import API, process, report, wait_for

from slipstream.config import Config
from slipstream_proxy.log.ids import new_id
from slipstream_proxy.log.records import CallHead, Kind, Mutation
from slipstream_proxy.log.spool import SpoolWriter

AUTH = {"x-slipstream-auth": json.dumps({"key": "-", "scopes": ["admin"]})}
TURNS, PROMPT, SAMPLED = 4, 400, 60


def call(rng: random.Random, episode: str, task: str, turn: int) -> tuple[CallHead, bytes, bytes]:
    messages = [{"role": "user", "content": f"{episode} {i} " + "word " * 60} for i in range(turn + 1)]
    ids = [rng.randrange(150_000) for _ in range(SAMPLED)]
    scored = [{"token": "t", "logprob": -rng.random(), "bytes": [116], "top_logprobs": []} for _ in ids]
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "word " * 60}, "token_ids": ids, "logprobs": {"content": scored}}  # fmt: skip
    reply = {"id": "c", "object": "chat.completion", "model": "tiny", "prompt_token_ids": list(range(PROMPT + turn * 120)), "choices": [choice]}  # fmt: skip
    head = CallHead(
        id=new_id(), key="-", episode=episode, task=task, split="train", tags={}, model="tiny", trained="tiny", adapter="tiny", arm="live",
        pin="control", dialect="chat", stream=False, at=time.time(), seconds=0.1, first_byte=0.1, status=200, outcome="ok", upstream="http://engine",
        done=turn == TURNS - 1,
    )  # fmt: skip
    request = {"model": "tiny", "messages": messages, "temperature": 1.0}
    return head, json.dumps(request).encode(), json.dumps(reply).encode()


async def write_episodes(writer: SpoolWriter, control: SpoolWriter, first: int, count: int, size: int) -> None:
    rng = random.Random(first)
    for e in range(first, first + count):
        for turn in range(TURNS):
            head, request, reply = call(rng, f"e{e}", f"t{e // size}", turn)
            await writer.put(Kind.CALL, head, request, reply)
        data = {"key": "-", "episode": f"e{e}", "reward": {"value": rng.random(), "name": "reward", "source": "agent"}}
        await control.put(Kind.MUTATION, vars_of(Mutation(new_id(), "reward", time.time(), data)))


def vars_of(mutation: Mutation) -> dict[str, Any]:
    return {"id": mutation.id, "op": mutation.op, "at": mutation.at, "data": mutation.data}


async def load(writer: SpoolWriter, rate: float, stop: asyncio.Event) -> int:
    """Calls at ``rate`` a second, as a data plane would write them."""
    rng, count, begun = random.Random(7), 0, time.perf_counter()
    while not stop.is_set():
        while count < rate * (time.perf_counter() - begun):
            head, request, reply = call(rng, f"load{count // TURNS}", f"load{count // TURNS // 8}", count % TURNS)
            await writer.put(Kind.CALL, head, request, reply)
            count += 1
        await asyncio.sleep(0.005)
    return count


async def lease(session: aiohttp.ClientSession, groups: int) -> tuple[float, float, int, int, str, str]:
    """Seconds to the first byte and to the table, its episodes, rows, batch and lease."""
    body = {"worker": "bench", "min_groups": groups, "max_groups": groups, "max_wait": 3600}
    begun = time.perf_counter()
    async with session.post(f"http://localhost{API}/batches/lease", json=body) as r:
        assert r.status == 200, await r.text()
        first = time.perf_counter() - begun
        table = pa.ipc.open_stream(await r.read()).read_all()
        seconds = time.perf_counter() - begun
        episodes = len(set(table["episode"].to_pylist()))
        return first, seconds, episodes, table.num_rows, r.headers["x-slipstream-batch"], r.headers["x-slipstream-lease"]  # fmt: skip


async def measure(config: Config, args: argparse.Namespace) -> dict[str, Any]:
    control = SpoolWriter(config.spool_dir, "control0", segment_bytes=2**26, durability="process")
    writer = SpoolWriter(config.spool_dir, "data0", segment_bytes=2**26, durability="process")
    await write_episodes(writer, control, 0, args.episodes, args.size)
    groups = args.episodes // args.size
    connector = aiohttp.UnixConnector(path=str(config.socket))
    async with aiohttp.ClientSession(connector=connector, headers=AUTH) as session:
        while True:
            async with session.get(f"http://localhost{API}/status") as r:
                if (await r.json())["groups"].get("ready", 0) >= groups:
                    break
            await asyncio.sleep(0.1)
        stop = asyncio.Event()
        loading = asyncio.create_task(load(writer, args.rate, stop))
        begun = time.perf_counter()
        await asyncio.sleep(2.0)
        found = []
        for _ in range(args.times):
            *figures, batch, name = await lease(session, groups)
            found.append(figures)
            ack = {"lease": name, "outcome": "released"}
            async with session.post(f"http://localhost{API}/batches/{batch}/ack", json=ack) as r:
                assert r.status == 200, await r.text()
            await asyncio.sleep(1.0)
        async with session.get(f"http://localhost{API}/status") as r:
            lag = (await r.json())["ingest_lag_seconds"]
        stop.set()
        written = await loading / (time.perf_counter() - begun)
    return {
        "episodes": found[0][2], "rows": found[0][3], "median_seconds": round(statistics.median(f[1] for f in found), 3),
        "worst_seconds": round(max(f[1] for f in found), 3), "times": args.times, "calls_per_second": round(written), "lag_seconds": round(lag, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", help="another store than a fresh DuckDB file")
    parser.add_argument("--rate", type=float, default=200.0, help="calls written a second")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--size", type=int, default=8, help="episodes of a group")
    parser.add_argument("--times", type=int, default=10)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = {
            "data_dir": folder, "engine": {"urls": [], "name": "tiny"}, "groups": {"size": args.size}, "store": {"url": args.url} if args.url else {},
        }  # fmt: skip
        config = Config.model_validate(tree)
        Path(config.spool_dir).mkdir(parents=True, exist_ok=True)
        env = {"SLIPSTREAM_CONFIG_JSON": config.model_dump_json(), "SLIPSTREAM_LOG_LEVEL": "error"}
        command = [sys.executable, "-m", "slipstream_proxy.control.run.worker"]
        with process(command, Path(folder) / "control.log", env):
            wait_for(config.socket.exists, 60, 0.1, "the control plane does not listen")
            report(asyncio.run(measure(config, args)))


if __name__ == "__main__":
    main()
