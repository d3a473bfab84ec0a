"""Two replicas behind a real router, thirty versions at one a second, a replica killed and added again and again: how
many calls fail, move or meet a wrong version.

``python -m benchmarks.proxy.replicas > benchmarks/results/replicas.json``, with vllm-router installed. The replicas
are stand-ins that speak vLLM's protocol; proxy and router are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp
from tests.support import free_port, process
from tests.support.adapters import write_adapter
from tests.support.fake_engine import LoraEngine
from tests.support.running import run_settings

log = logging.getLogger(__name__)
VERSIONS, STREAMS, KILL_EVERY_S = 30, 8, 20.0


class Agents:
    """Runs of four calls, one after the other."""

    def __init__(self, url: str) -> None:
        self.url, self.statuses, self.moved, self.wrong, self.runs = url, Counter[int](), 0, 0, 0
        self.versions: set[str] = set()

    async def run_on(self, http: aiohttp.ClientSession, name: str, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self.runs += 1
            episode, seen = f"{name}-{self.runs}", set()
            for turn in range(4):
                body = {"model": "tiny", "messages": [{"role": "user", "content": f"turn {turn}"}]}
                headers = {"x-slipstream-episode": episode, "x-slipstream-task": name}
                try:
                    async with http.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as reply:
                        said = await reply.json() if reply.status == 200 else {}
                        if reply.status != 200:
                            log.warning("%s after %d: %s", episode, turn, (await reply.text())[:300])
                        self.statuses[reply.status] += 1
                        adapter = reply.headers.get("x-slipstream-adapter", "")
                        seen.add(adapter)
                        self.wrong += reply.status == 200 and said.get("answered_by") != adapter
                except (aiohttp.ClientError, OSError):
                    self.statuses[0] += 1
                await asyncio.sleep(0.05)
            self.versions |= seen
            self.moved += len(seen) > 1


class Replica(LoraEngine):
    """It says which model it computed."""

    async def chat(self, request):  # type: ignore[no-untyped-def]
        body = json.loads(await request.read())
        reply = await super().chat(request)
        if reply.status == 200 and isinstance(reply.body, bytes):
            reply.body = json.dumps(json.loads(reply.body) | {"answered_by": body["model"]}).encode()
        return reply


async def measure(folder: Path) -> dict[str, object]:
    replicas = [await Replica().start() for _ in range(2)]
    urls, at = [r.url for r in replicas], free_port()
    command = [sys.executable, "-m", "vllm_router.launch_router", "--host", "127.0.0.1", "--port", str(at)]
    more = ["--policy", "consistent_hash", "--prometheus-port", str(free_port()), "--health-check-interval-secs", "1"]
    router = f"http://127.0.0.1:{at}"
    engine = {"urls": urls, "router": router, "name": "tiny", "health_interval": 0.5, "max_loras": 8}
    tree = {"engine": engine, "gate": {"holdout": 0.0}, "proxy": {"port": 0}, "adapters": {"pin_seconds": 600.0}}
    with contextlib.ExitStack() as stack:
        stack.enter_context(process([*command, "--worker-urls", *urls, *more], folder / "router.log"))
        stack.enter_context(within := contextlib.ExitStack())
        running = await asyncio.to_thread(lambda: within.enter_context(run_settings(folder / "proxy", tree)))
        stop, killed, refused = asyncio.Event(), 0, 0
        agents = Agents(running.url)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
            streams = [asyncio.create_task(agents.run_on(http, f"s{n}", stop)) for n in range(STREAMS)]
            began, last = time.monotonic(), time.monotonic()
            for version in range(1, VERSIONS + 1):
                write_adapter(running.data_dir / "adapters" / f"tiny@{version}", 8, version)
                async with http.post(
                    f"{running.url}/slipstream/v1/adapters", json={"path": f"tiny@{version}"}
                ) as reply:
                    refused += reply.status != 201
                if time.monotonic() - last > KILL_EVERY_S:
                    last, one = time.monotonic(), replicas[killed % 2]
                    killed += 1
                    await one.stop()
                    await asyncio.sleep(3.0)
                    one.restart()
                    await one.start()
                await asyncio.sleep(max(0.0, began + version + 3.0 * killed - time.monotonic()))
            await asyncio.sleep(3.0)
            stop.set()
            await asyncio.gather(*streams)
            async with http.get(f"{running.url}/slipstream/v1/adapters") as reply:
                states = Counter(a["state"] for a in (await reply.json())["adapters"])
    for one in replicas:
        await one.stop()
    return {
        "what": "two stand-in replicas behind vllm-router, versions at one a second, a replica killed now and then",
        "command": "python -m benchmarks.proxy.replicas",
        "vllm_router": importlib.metadata.version("vllm-router"),
        "calls": dict(agents.statuses),
        "runs": agents.runs,
        "runs_that_moved": agents.moved,
        "calls_on_a_wrong_version": agents.wrong,
        "versions_met": len(agents.versions),
        "replicas_killed": killed,
        "registrations_refused": refused,
        "states": dict(states),
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure(Path(folder))), indent=1))


if __name__ == "__main__":
    main()
