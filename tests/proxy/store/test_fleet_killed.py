"""Two real proxies, each of its own processes, on one PostgreSQL; one is killed in the middle of its work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess

import aiohttp
import psycopg
import pytest
import tomli_w
from tests.support import slipstream
from tests.support.adapters import write_adapter
from tests.support.fake_engine import LoraEngine
from tests.support.plane import until

API = "/slipstream/v1"


def descendants(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            with open(f"/proc/{one}/task/{one}/children") as file:
                found += [int(p) for p in file.read().split()]
    return found


class Proxy:
    def __init__(self, folder, config: dict) -> None:
        self.folder = folder
        folder.mkdir()
        self.path = folder / "slipstream.toml"
        self.path.write_text(tomli_w.dumps({"data_dir": str(folder / "data"), **config}))
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(slipstream("proxy", "--config", str(self.path)), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
        await until(self.ready, 120)

    async def ready(self) -> bool:
        assert self.process and self.process.poll() is None, (self.folder / "log").read_text()[-3000:]
        with contextlib.suppress(OSError, ValueError, aiohttp.ClientError):
            told = json.loads((self.folder / "data" / "proxy.json").read_text())
            self.url = told["url"]
            async with self.session.get(self.url + "/readyz") as r, self.session.get(self.url + API + "/status") as s:
                return told["pid"] == self.process.pid and r.status == s.status == 200
        return False

    def kill(self) -> None:
        """All of it at once."""
        assert self.process
        for pid in descendants(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    async def stop(self) -> None:
        await self.session.close()
        if self.process and self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self.process.wait, 30)
            self.kill()

    async def ask(self, method: str, path: str, body=None, **headers):
        async with self.session.request(method, self.url + path, json=body, headers=headers) as r:
            return r.status, await r.json(), r.headers

    async def call(self, episode: str, turn: int, **headers) -> str:
        messages = [{"role": "user", "content": f"{episode} {i}"} for i in range(turn + 1)]
        body = {"model": "tiny", "messages": messages, "temperature": 1.0}
        tags = {"x-slipstream-episode": episode, "x-slipstream-task": "t", **headers}
        status, _, got = await self.ask("POST", "/v1/chat/completions", body, **tags)
        if status != 200:
            raise aiohttp.ClientError(f"{status}")
        return f"{got['x-slipstream-call']} {got['x-slipstream-adapter']}"


@pytest.fixture
async def proxies(postgres, tmp_path):
    with psycopg.connect(postgres, autocommit=True) as con:
        con.execute("DROP SCHEMA IF EXISTS killed CASCADE; CREATE SCHEMA killed")
    engine = await LoraEngine().start()
    config = {
        "engine": {"urls": [engine.url], "name": "tiny", "health_interval": 0.2}, "gate": {"holdout": 0.0}, "proxy": {"port": 0},
        "store": {"url": f"{postgres}&options=-csearch_path%3Dkilled"}, "adapters": {"dir": str(tmp_path / "adapters")},
    }  # fmt: skip
    made = [Proxy(tmp_path / name, config) for name in "ab"]
    await asyncio.gather(*(p.start() for p in made))
    yield made
    for proxy in made:
        await proxy.stop()
    await engine.stop()


async def test_one_fleet(proxies, tmp_path):
    a, b = proxies
    first = await a.call("old", 0)
    assert first.endswith(" tiny")

    async def known() -> bool:  # b knows a's run once its first call is stored
        said = {"query": "select count(*) from calls where episode = 'old'"}
        return (await b.ask("POST", API + "/sql", said))[1]["rows"] == [[1]]

    await until(known)
    write_adapter(tmp_path / "adapters" / "tiny@1")
    assert (await a.ask("POST", API + "/adapters", {"path": "tiny@1"}))[0] == 201

    async def live() -> bool:
        return (await b.ask("GET", API + "/adapters"))[1]["live"] == {"tiny": "tiny@1"}

    await until(live)
    told: dict[str, list[str]] = {"old": [first]}
    told["old"].append(await b.call("old", 1))  # begun at a, before the adapter came
    told["new"] = [await b.call("new", 0), await a.call("new", 1)]
    assert [c.split()[1] for c in told["old"] + told["new"]] == ["tiny", "tiny", "tiny@1", "tiny@1"]

    kill = asyncio.create_task(_kill_soon(a))
    turn = 0
    while a.process.poll() is None:  # as long as it answers: what it says it has is there later, once
        with contextlib.suppress(aiohttp.ClientError, OSError):
            told.setdefault(f"k{turn}", []).append(await a.call(f"k{turn}", 0))
            await a.ask("POST", f"{API}/episodes/k{turn}/rewards", {"value": turn, "key": f"r{turn}"})
        turn += 1
    await kill
    told["new"].append(await b.call("new", 2))  # the other one serves on, with the same adapter
    assert told["new"][-1].endswith(" tiny@1")
    await a.start()

    async def there() -> bool:
        rows = (await b.ask("POST", API + "/sql", {"query": "select episode, id from calls", "limit": 100_000}))[1]["rows"]  # fmt: skip
        found: dict[str, list[str]] = {}
        for episode, call in rows:
            found.setdefault(episode, []).append(call)
        assert all(len(ids) == len(set(ids)) for ids in found.values())
        return all({c.split()[0] for c in calls} <= set(found.get(e, [])) for e, calls in told.items())

    await until(there, 120)


async def _kill_soon(proxy: Proxy) -> None:
    await asyncio.sleep(0.4)
    proxy.kill()


async def test_calls_have_the_order_in_which_they_were_answered(proxies):
    """An agent changes its proxy in the middle of an episode, while one of them reads nothing into the store."""
    a, b = proxies
    told: dict[str, list[str]] = {}
    stopped = [p for p in descendants(a.process.pid) if b"control.run.worker" in _command(p)]
    assert len(stopped) == 1
    for when in ("before", "meanwhile", "after"):
        for turn in range(5):
            for name in ("alternating", "plain", f"{when}-only"):
                proxy = (a, b)[(turn + len(name)) % 2] if name != "plain" else (b if turn == 2 else a)
                so_far = len(told.setdefault(name, []))
                told[name].append((await proxy.call(name, so_far)).split()[0])
        if when == "before":
            os.kill(stopped[0], signal.SIGSTOP)
        elif when == "meanwhile":
            await asyncio.sleep(0.5)  # the other proxy's calls are stored
            os.kill(stopped[0], signal.SIGCONT)

    async def stored() -> bool:
        query = "select episode, id, number from calls order by episode, number"
        rows = (await b.ask("POST", API + "/sql", {"query": query, "limit": 1000}))[1]["rows"]
        if len(rows) < sum(map(len, told.values())):
            return False
        for name, calls in told.items():
            assert [(i, n) for e, i, n in rows if e == name] == list(zip(calls, range(len(calls)), strict=True))
        return True

    await until(stored, 60)


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
    return b""
