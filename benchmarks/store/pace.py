"""CPU of a call from the agent's socket to the store's table, at the pace of live agents: of the control plane, beside a worker's.

    python -m benchmarks.store.pace [--paces 5 20 100 0] [--seconds 12] [--stores duckdb postgres] [--out FILE]

A whole proxy with one worker, before an engine that costs it nothing. Runs have four calls of 64 sampled tokens over a growing prompt, with a tag, and end with
a reward; ``--paces``: calls a second, 0: as many as 32 agents get. Milliseconds of CPU a call; ``idle`` is of a second in which nothing comes,
and part of the others. ``rows``: calls that the store had at the end, which must be those answered. ``server``: PostgreSQL's own processes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
from benchmarks.harness import API, ask, cpu_seconds, free_port, report, say, wait_port
from benchmarks.proxy.stand_in import answer, serve
from tests.support.postgres import postgres_server
from tests.support.running import Running, run_proxy

TURNS, TOKENS, AGENTS = 4, 64, 32
WARM_CALLS, IDLE_S = 80, 5.0
WORDS = " ".join(f"word{n % 17}" for n in range(TOKENS))
HEADER = {"authorization": "Bearer sk-none", "content-type": "application/json"}


# --- the engine, in a process of its own


def reply_of(body: dict[str, Any]) -> bytes:
    """The prompt's ids are those of the text before, so that a call's tokens begin with the last one's."""
    asked = [n % 997 for n in range(80 * len(body.get("messages", ())))]
    ids = [n % 991 for n in range(TOKENS)]
    logprobs: dict[str, Any] = {
        "content": [{"token": "w", "logprob": -0.25, "bytes": None, "top_logprobs": []} for _ in ids]
    }
    choice = {"index": 0, "message": {"role": "assistant", "content": WORDS}, "finish_reason": "stop", "token_ids": ids, "logprobs": logprobs}  # fmt: skip
    usage = {"prompt_tokens": len(asked), "completion_tokens": len(ids), "total_tokens": len(asked) + len(ids)}
    found = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage, "prompt_token_ids": asked}  # fmt: skip
    return answer(json.dumps(found).encode())


def serve_engine(port: int) -> None:
    asyncio.run(serve(port, lambda body: reply_of(json.loads(body))))


@contextlib.contextmanager
def engine() -> Iterator[str]:
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=serve_engine, args=(port,), daemon=True)
    process.start()
    wait_port(port)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.join()


# --- agents


async def run_once(session: aiohttp.ClientSession, url: str, name: str, pause: float) -> int:
    """One run of ``TURNS`` calls, ``pause`` seconds apart, and its reward. → Calls that were answered."""
    messages: list[dict[str, str]] = [{"role": "system", "content": WORDS}]
    headers = {**HEADER, "x-slipstream-episode": name, "x-slipstream-task": f"t{hash(name) % 50}"}
    for turn in range(TURNS):
        began = time.monotonic()
        messages.append({"role": "user", "content": f"{name} {turn} {WORDS}"})
        body = {"model": "m", "temperature": 1.0, "messages": messages}
        async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
            answer.raise_for_status()
            messages.append((await answer.json())["choices"][0]["message"])
        if pause:
            await asyncio.sleep(max(0.0, pause - (time.monotonic() - began)))
    reward = {"value": (hash(name) % 10) / 10}
    async with session.post(f"{url}{API}/episodes/{name}/rewards", json=reward, headers=HEADER) as answer:
        answer.raise_for_status()
    return TURNS


async def agents(url: str, pace: float, seconds: float, label: str) -> int:
    """→ Calls that were answered. ``pace``: calls a second by agents that think for a second; 0: as fast as they are answered."""
    count = AGENTS if not pace else max(1, round(pace))
    end, done = time.monotonic() + seconds, 0
    pause = count / pace if pace else 0.0

    async def agent(number: int) -> None:
        nonlocal done
        await asyncio.sleep(pause * number / count)
        run = 0
        while time.monotonic() < end:
            answered = await run_once(session, url, f"{label}-{number}-{run}", pause)
            done, run = done + answered, run + 1

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(agent(n) for n in range(count)))
    return done


# --- one store


def processes(root: int) -> dict[str, int]:
    """The proxy's processes by what they are."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().split(b"\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == root:
                found["worker" if b"slipstream_proxy.data.worker" in command else "control" if b"slipstream_proxy.control.run.worker" in command else "other"] = int(folder.name)  # fmt: skip
    return found


def stored(running: Running) -> int:
    said = json.loads(ask("POST", f"{running.url}{API}/sql", {"query": "SELECT count(*) AS n FROM calls"}))
    return int(said["rows"][0][0])


def measure(running: Running, pace: float, seconds: float, server: int | None) -> dict[str, float]:
    found = processes(running.process.pid)
    pids = {"control": found["control"], "worker": found["worker"], **({"server": server} if server else {})}
    base = stored(running)
    before, began = {name: cpu_seconds(pid) for name, pid in pids.items()}, time.monotonic()
    calls = asyncio.run(agents(running.url, pace, seconds, f"p{pace:g}-{time.time_ns()}")) if pace >= 0 else 0
    if pace < 0:
        time.sleep(seconds)
    wall = time.monotonic() - began
    if calls:
        wait_stored(running)
    spent = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
    if not calls:
        return {f"{name}_ms_a_second": round(1000 * s / wall, 2) for name, s in spent.items()}
    rows = stored(running) - base
    if rows != calls:
        raise SystemExit(f"{calls} calls were answered, the store has {rows}")
    made = {f"{name}_ms": round(1000 * s / calls, 3) for name, s in spent.items()}
    return {"calls_a_second": round(calls / wall, 1), "rows": rows, **made}


def wait_stored(running: Running) -> None:
    """A look at any episode waits until the store has what stands in the spool."""
    with contextlib.suppress(OSError):
        ask("GET", f"{running.url}{API}/episodes/none", timeout=120)


def one_store(kind: str, paces: list[float], seconds: float) -> dict[str, dict[str, float]]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url, server = "", None
        if kind == "postgres":
            made = stack.enter_context(postgres_server())
            url, server = made.url, made.pid
        up = stack.enter_context(engine())
        more: dict[str, Any] = {"engine": {"name": "m"}, **({"store": {"url": url}} if url else {})}
        running = stack.enter_context(run_proxy(folder, up, **more))
        asyncio.run(agents(running.url, 0, 0.5, "warm"))
        time.sleep(2)
        found = {"idle": measure(running, -1, IDLE_S, server)}
        for pace in paces:
            found["full" if not pace else f"{pace:g}"] = measured = measure(running, pace, seconds, server)
            say(f"{kind} {pace:g}: {json.dumps(measured)}")
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paces", type=float, nargs="*", default=[5, 20, 100, 0])
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--stores", nargs="*", default=["duckdb", "postgres"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report({kind: one_store(kind, options.paces, options.seconds) for kind in options.stores}, options.out)


if __name__ == "__main__":
    main()
