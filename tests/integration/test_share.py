"""A real proxy, an engine that can sleep, and a trainer that is killed in the middle of its turn: calls wait, none fails."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

import aiohttp
from tests.support import process, until
from tests.support.fake_engine import FakeEngine
from tests.support.running import run_proxy

HOLDER = """
import sys, time
from slipstream.client import Client
from slipstream.config import Config
from slipstream_trainer.run import gpu_lease
gpu_lease.LEASE_TTL_S, gpu_lease.RENEW_INTERVAL_S = 5.0, 0.5
with gpu_lease.GpuLease(Config(engine={"share": True}), Client(sys.argv[1]), "t").take():
    print("has it", flush=True)
    time.sleep(600)
"""


class Load:
    """Callers that call again as soon as they are answered."""

    def __init__(self, url: str) -> None:
        self.url, self.statuses, self.stop = url, [], False

    async def call(self, session: aiohttp.ClientSession, n: int) -> None:
        while not self.stop:
            body = {"model": "inbox", "messages": [{"role": "user", "content": "hi"}], "stream": n % 2 == 0}
            async with session.post(
                f"{self.url}/v1/chat/completions", json=body, headers={"x-slipstream-episode": f"e{n}"}
            ) as reply:
                text = await reply.read()
                whole = text.endswith(b"data: [DONE]\n\n") if body["stream"] else text.endswith(b"}")
                self.statuses.append(reply.status if whole else 0)
            await asyncio.sleep(0.01)

    async def run(self) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(self.call(session, n) for n in range(8)))


async def metric(url: str, name: str) -> float:
    """Its value once it is not 0: a worker says its numbers every two seconds."""
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/metrics") as reply:
                lines = (await reply.text()).splitlines()
            if value := sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)):
                return value
            await asyncio.sleep(0.2)


async def test_a_trainer_killed_in_its_turn_costs_a_wait_and_no_call(tmp_path: Path) -> None:
    fake = await FakeEngine().start()
    fake.models, fake.delay = {"inbox"}, 0.01
    with contextlib.ExitStack() as stack:
        proxy = await asyncio.to_thread(
            stack.enter_context,
            run_proxy(
                tmp_path, fake.url, proxy={"port": 0, "workers": 2, "durability": "process"}, engine={"share": True}
            ),
        )
        load = Load(proxy.url)
        running = asyncio.create_task(load.run())
        await until(lambda: len(load.statuses) > 20)
        holder = stack.enter_context(process([sys.executable, "-c", HOLDER, proxy.url], tmp_path / "holder.log"))
        await until(lambda: not fake.sleeping.awake.is_set() or holder.poll() is not None)
        assert holder.poll() is None, (tmp_path / "holder.log").read_text()
        await until(lambda: "has it" in (tmp_path / "holder.log").read_text())
        holder.send_signal(signal.SIGKILL)
        await until(fake.sleeping.awake.is_set)
        count = len(load.statuses)
        await until(lambda: len(load.statuses) > count + 20)
        load.stop = True
        await running
        assert set(load.statuses) == {200}
        assert fake.sleeping.wakes >= 1
        assert await metric(proxy.url, "slipstream_held_calls_total") >= 1
        assert await metric(proxy.url, "slipstream_hold_longest_seconds") > 0
        assert await metric(proxy.url, 'slipstream_engine_holds_total{how="expired"}') >= 1
    await fake.stop()
