"""Whole processes: what a worker and the parent do when they are killed, told to end, or started wrongly."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from tests.support import until
from tests.support.dataplane import ASK, post

from slipstream.config import Config
from slipstream_proxy.data import worker as module
from slipstream_proxy.keys import Keys
from slipstream_proxy.log.segments import list_segments, read_segment
from slipstream_proxy.process.parent import bind


class Worker:
    """A data-plane process."""

    def __init__(self, config: Config) -> None:
        self.sock = bind("127.0.0.1", 0)
        self.url = "http://127.0.0.1:%d" % self.sock.getsockname()[1]
        self.config = config
        fd = self.sock.fileno()
        env = {**os.environ, "SLIPSTREAM_CONFIG_JSON": config.model_dump_json()}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slipstream_proxy.data.worker", "0", str(fd)], env=env, pass_fds=(fd,)
        )

    async def up(self):
        async def answers():
            try:
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(self.url + "/healthz", timeout=aiohttp.ClientTimeout(total=5)) as r,
                ):
                    return r.status == 200
            except (OSError, aiohttp.ClientError, TimeoutError):
                return False

        async with asyncio.timeout(60):
            while not await answers():
                assert self.process.poll() is None
                await asyncio.sleep(0.05)
        return self

    async def ended(self) -> int:
        await until(lambda: self.process.poll() is not None)
        return self.process.returncode

    def close(self):
        self.process.kill()
        self.process.wait()
        self.sock.close()

    def calls(self):
        return [
            f.head["id"]
            for segments in list_segments(self.config.spool_dir).values()
            for _, path in segments
            for f in read_segment(path)
        ]


@pytest.fixture
async def worker(tmp_path, fake):
    made = []

    async def make(folder="data", **proxy):
        config = Config(data_dir=str(tmp_path / folder), engine={"urls": [fake.url], "name": "tiny"}, proxy=proxy)
        made.append(Worker(config))
        return await made[-1].up()

    yield make
    for w in made:
        w.close()


@pytest.mark.parametrize("durability", ["power", "process"])
async def test_kill_9_loses_no_acknowledged_call(worker, durability):
    proc = await worker(durability=durability)
    got = []

    async def agent(n):
        async with aiohttp.ClientSession() as session:
            for i in range(10_000):
                try:
                    async with session.post(
                        proc.url + "/v1/chat/completions", json={**ASK, "stream": bool(i % 2)}
                    ) as reply:
                        body = await reply.read()
                        if reply.status == 200 and (b"[DONE]" in body or not i % 2):
                            got.append(reply.headers["x-slipstream-call"])
                except (aiohttp.ClientError, OSError):
                    return

    agents = [asyncio.create_task(agent(n)) for n in range(8)]
    await until(lambda: len(got) > 100)
    proc.process.kill()
    await asyncio.gather(*agents)
    stored = proc.calls()
    assert set(got) <= set(stored) and len(stored) == len(set(stored))
    again = await worker(durability=durability)
    assert (await post(again.url, ASK))[0] == 200
    assert len(list_segments(again.config.spool_dir)["data0"]) == 2


async def test_memory_that_a_rush_has_left_is_given_back(monkeypatch):
    monkeypatch.setattr(module, "GIVE_BACK_EVERY_S", 0.05)
    module.keep_memory()
    giving = asyncio.create_task(module.give_back())
    await asyncio.sleep(0)
    rush = [bytes(2**16) for _ in range(3000)]
    high = module._resident()
    del rush[::2], rush[:-1]  # what stays lies at the heap's end: the rest is holes
    try:
        await until(lambda: module._resident() < high - 100 * 2**20)
    finally:
        giving.cancel()


async def test_a_rolling_restart_under_streams(worker, fake):
    """Two proxies are restarted one after the other. A running stream ends whole at the old one; new calls find the
    other one, as a load balancer asks ``/readyz``. Nothing is lost.
    """
    fake.hold = asyncio.Event()
    proxies = [await worker(folder="a"), await worker(folder="b")]
    async with aiohttp.ClientSession() as session:

        async def draining(url):
            async with session.get(url + "/readyz") as r:
                return r.status == 503 and (await r.json())["status"] == "draining"

        def stream(proc):
            return session.post(proc.url + "/v1/chat/completions", json={**ASK, "stream": True})

        for n in (0, 1):
            old, other = proxies[n], proxies[1 - n]
            fake.hold.clear()
            async with stream(old) as running:
                old.process.send_signal(signal.SIGTERM)
                await until(lambda: draining(old.url))
                async with stream(other) as new:
                    assert not await draining(other.url)
                    fake.hold.set()
                    bodies = [await running.read(), await new.read()]
            assert all(body.endswith(b"data: [DONE]\n\n") for body in bodies)
            assert await old.ended() == 0
            proxies[n] = await worker(folder=old.config.root.name)
    assert sorted(len(p.calls()) for p in proxies) == [2, 2]
    assert all(len(set(p.calls())) == 2 for p in proxies)


async def test_a_stream_that_outlasts_the_drain_is_ended(worker, fake):
    proc = await worker(drain_timeout=0.2)
    fake.hold = asyncio.Event()
    async with aiohttp.ClientSession() as session:
        async with session.post(proc.url + "/v1/chat/completions", json={**ASK, "stream": True}) as reply:
            proc.process.send_signal(signal.SIGTERM)
            with pytest.raises(aiohttp.ClientPayloadError):
                await reply.read()
    assert await proc.ended() == 0
    (segments,) = list_segments(proc.config.spool_dir).values()
    assert [f.head["outcome"] for _, p in segments for f in read_segment(p)] == ["aborted"]


PARENT = "import sys; from slipstream.config import load_config; from slipstream_proxy.main import run; sys.exit(run(load_config(flags=sys.argv[1:])))"


async def test_the_parent_keeps_its_children_alive_and_ends_them(tmp_path, fake):
    data = tmp_path / "d"
    keys = Keys(data / "keys.json")
    key_id, _ = keys.add("a", ["admin"])
    flags = [f"data_dir={data}", "proxy.port=0", "proxy.workers=2", "engine.name=tiny", f'engine.urls=["{fake.url}"]']
    process = subprocess.Popen([sys.executable, "-c", PARENT, *flags], stdout=subprocess.PIPE, text=True)
    try:
        found = data / "proxy.json"
        await until(lambda: found.exists() or process.poll() is not None)
        url = json.loads(found.read_text())["url"]
        assert (await post(url, ASK))[0] == 401

        def workers():
            found = []
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                    if parent == process.pid and b"data.worker" in (folder / "cmdline").read_bytes():
                        found.append(int(folder.name))
                except OSError:
                    continue
            return found

        await until(lambda: len(workers()) == 2)
        keys.revoke(key_id)
        victims = set(workers())
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        await until(lambda: len(now := workers()) == 2 and victims.isdisjoint(now))
        assert (await post(url, ASK))[0] == 401, (
            "that the last key is gone opens no door, whenever a worker was started"
        )
        process.send_signal(signal.SIGTERM)
        await until(lambda: process.poll() is not None)
        assert process.returncode == 0 and not found.exists()
        assert f"slipstream proxy on {url}" in process.stdout.read()
    finally:
        process.kill()
        process.wait()


async def test_a_keys_limits_and_the_metrics_are_those_of_all_workers(tmp_path, fake):
    data = tmp_path / "d"
    _, secret = Keys(data / "keys.json").add("a", ["inference", "admin"], concurrency=2)
    flags = [f"data_dir={data}", "proxy.port=0", "proxy.workers=3", "engine.name=tiny", f'engine.urls=["{fake.url}"]']
    process = subprocess.Popen([sys.executable, "-c", PARENT, *flags], stdout=subprocess.DEVNULL)
    auth = {"authorization": f"Bearer {secret}"}
    try:
        found = data / "proxy.json"
        await until(lambda: found.exists() or process.poll() is not None)
        url = json.loads(found.read_text())["url"]

        async def up() -> bool:
            async with aiohttp.ClientSession() as session, session.get(url + "/metrics") as reply:
                return reply.status == 200 and len(list((data / "metrics").glob("data*.json"))) == 3

        await until(up)
        fake.hold = asyncio.Event()
        asked = [asyncio.create_task(post(url, ASK, headers=auth)) for _ in range(12)]
        await until(lambda: sum(t.done() for t in asked) == 10)
        await until(lambda: len(fake.seen) == 2)
        assert {t.result()[0] for t in asked if t.done()} == {429}
        fake.hold.set()
        assert sorted([(await t)[0] for t in asked]) == [200, 200, *[429] * 10]
        assert (await post(url, ASK, headers=auth))[0] == 200

        async def counted() -> list[str]:
            async with aiohttp.ClientSession() as session, session.get(url + "/metrics") as reply:
                text = await reply.text()
            names = ("slipstream_calls_total{", "slipstream_requests_refused_total{")
            return sorted(line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(names))

        # whoever is asked: the others' numbers are as old as their last file
        async with asyncio.timeout(60):
            while await counted() != ["10", "10", "3"]:
                await asyncio.sleep(0.2)
    finally:
        if fake.hold is not None:
            fake.hold.set()
        process.terminate()
        process.wait()


async def test_children_die_with_a_killed_parent(tmp_path, fake):
    flags = [f"data_dir={tmp_path / 'd'}", "proxy.port=0", "engine.name=tiny", f'engine.urls=["{fake.url}"]']
    process = subprocess.Popen([sys.executable, "-c", PARENT, *flags], stdout=subprocess.DEVNULL)
    found = tmp_path / "d" / "proxy.json"
    await until(lambda: found.exists() or process.poll() is not None)
    url = json.loads(found.read_text())["url"]
    process.kill()
    process.wait()

    async def nobody_answers() -> bool:
        try:
            await post(url, ASK)
        except (aiohttp.ClientError, OSError):
            return True
        return False

    await until(nobody_answers, pause=0.1)


def test_memory_that_is_freed_is_kept_for_the_next_call():
    """Page faults of bodies that come and go: what malloc gives back to the system has to be faulted in again."""
    script = """
import resource
from slipstream_proxy.data.worker import keep_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(300):
        [b"%b" % (b"x" * 60_000) for _ in range(6)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
keep_memory()
faults()
print(faults())
"""
    out = subprocess.check_output([sys.executable, "-c", script], text=True, timeout=60)
    assert int(out) < 300
