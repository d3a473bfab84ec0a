"""Load on a real proxy while processes are killed, files broken and disks filled: what was acknowledged is there, once, in order.

``python tests/chaos/chaos.py --rounds 200 --seed 1``; the last line is a JSON object: rounds, acknowledged, lost, doubled, disordered, returned
(forgotten and there again), refused_starts, and how often each hurt was done.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.proxy.fake_engine import FakeEngine
from tests.support import slipstream, toml

from slipstream_proxy.spool import list_segments, read_segment

API = "/slipstream/v1"
AGENTS = 4
WAL = ("torn", "zeroed", "flipped")
KILLS = ("worker", "control", "proxy")
NEED_MOUNT = ("full", "readonly")
PATIENCE = 120.0


@dataclass
class Told:
    """What the clients were told: acknowledged calls and rewards by episode, in order."""

    calls: dict[str, list[str]] = field(default_factory=dict)
    rewards: dict[str, list[float]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    count: int = 0

    def forget(self, episode: str) -> None:
        self.calls.pop(episode, None)
        self.rewards.pop(episode, None)


@dataclass
class Found:
    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    returned: int = 0


def mounted(folder: Path, megabytes: int) -> bool:
    """A small disk of our own at ``folder``, where we may."""
    folder.mkdir(parents=True, exist_ok=True)
    argv = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    with contextlib.suppress(OSError):
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0
    return False


def children(pid: int) -> dict[int, str]:
    """Pid → command line of a process's children."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == pid:
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def break_file(path: Path, how: str, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if not data:
        return
    place = rng.randrange(len(data))
    match how:
        case "torn":
            del data[place:]
        case "zeroed":
            data[place : place + 512] = bytes(min(512, len(data) - place))
        case "flipped":
            data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


class Chaos:
    def __init__(self, folder: Path, engine: FakeEngine, seed: int, *, mounts: bool, said=print) -> None:
        self.folder, self.engine, self.rng, self.mounts, self.said = folder, engine, random.Random(seed), mounts, said
        self.data = folder / "data"
        self.told, self.found = Told(), Found()
        self.refused = 0
        self.hurts: collections.Counter[str] = collections.Counter()
        self.excused: set[str] = set()
        """Rounds in which the proxy said that it could not keep some calls."""
        self.kills = 0
        self.rewards = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.session: aiohttp.ClientSession

    # the proxy

    async def start(self) -> None:
        """Until it is ready; a start that is refused is counted, and tried again."""
        tree = {
            "data_dir": str(self.data), "gate": {"holdout": 0.0}, "engine": {"urls": [self.engine.url], "name": "tiny", "health_interval": 0.2},
            "proxy": {"port": 0, "workers": 2, "segment_bytes": 65536, "drain_timeout": 5.0},
        }  # fmt: skip
        config = self.folder / "slipstream.toml"
        config.write_text(toml(tree))
        for _ in range(3):
            with (self.folder / "proxy.log").open("ab") as log:
                self.process = subprocess.Popen(slipstream("proxy", "--config", str(config)), stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
            self.kills = 0
            if await self.ready():
                return
            self.refused += 1
            await self.kill_all()
        raise AssertionError((self.folder / "proxy.log").read_text()[-4000:])

    async def ready(self) -> bool:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            assert self.process is not None
            if self.process.poll() is not None:
                return False
            with contextlib.suppress(OSError, ValueError, aiohttp.ClientError, TimeoutError):
                told = json.loads((self.data / "proxy.json").read_text())
                if told["pid"] == self.process.pid:
                    self.url = told["url"]
                    async with self.session.get(self.url + "/readyz") as r, self.session.get(self.url + API + "/status") as s:  # fmt: skip
                        if r.status == s.status == 200:
                            return True
            await asyncio.sleep(0.03)
        return False

    async def kill_all(self) -> None:
        """Everything at once, as when the machine's power goes, but for what the kernel holds."""
        if self.process is None:
            return
        pids = [self.process.pid, *children(self.process.pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        end = time.monotonic() + PATIENCE
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
            await asyncio.sleep(0.01)
        self.process = None

    async def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self.process.wait, 60)
        await self.kill_all()

    # the load

    async def agent(self, name: str, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set():
            episode = f"{name}-{number}"
            number += 1
            for turn in range(4):
                try:
                    await self.call(episode, turn)
                    await self.reward(episode)
                    await asyncio.sleep(0.01)
                except (aiohttp.ClientError, TimeoutError, OSError):
                    await asyncio.sleep(0.1)
                if stop.is_set():
                    break

    async def call(self, episode: str, turn: int) -> None:
        messages = [{"role": "user", "content": f"{episode} {i}"} for i in range(turn + 1)]
        body = {"model": "tiny", "messages": messages, "temperature": 1.0, "stream": turn % 2 == 1}
        headers = {"x-slipstream-episode": episode, "x-slipstream-task": episode.split("-", maxsplit=1)[0], "x-slipstream-tag-by": "chaos"}  # fmt: skip
        async with self.session.post(self.url + "/v1/chat/completions", json=body, headers=headers) as r:
            text = await r.read()
        if r.status == 200 and (b"data: [DONE]" in text if body["stream"] else b'"choices"' in text):
            self.told.calls.setdefault(episode, []).append(r.headers["x-slipstream-call"])
            self.told.count += 1

    async def reward(self, episode: str) -> None:
        self.rewards += 1
        value = float(self.rewards)
        body = {"name": "score", "value": value, "key": f"k{value}"}
        async with self.session.post(f"{self.url}{API}/episodes/{episode}/rewards", json=body) as r:
            if r.status == 200:
                self.told.rewards.setdefault(episode, []).append(value)
                self.told.count += 1

    async def forget_one(self, begin: str) -> None:
        """One of an earlier round, which nobody works on any more. Forgetting takes a snapshot, after which the spool's older segments go."""
        episode = self.rng.choice(sorted(e for e in self.told.calls if not e.startswith(begin)))
        self.told.forget(episode)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with self.session.delete(f"{self.url}{API}/episodes/{episode}") as r:
                if r.status == 200:
                    self.told.gone.add(episode)

    # hurts

    async def hurt(self, how: str) -> int | None:
        """Do it and undo it. Where calls cannot be kept meanwhile: how many the proxy had said so of before."""
        self.hurts[how] += 1
        assert self.process is not None
        if how in ("worker", "control"):
            self.kills += 1
            pids = [p for p, line in children(self.process.pid).items() if f".{'data' if how == 'worker' else how}.worker" in line]  # fmt: skip
            os.kill(self.rng.choice(pids), signal.SIGKILL) if pids else None
        elif how == "proxy":
            await self.kill_all()
            await self.start()
        elif how in WAL:
            await self.kill_all()
            log = self.data / "slipstream.duckdb.wal"
            if log.exists():
                break_file(log, how, self.rng)
            await self.start()
        elif how == "tail":
            await self.kill_all()
            for path in sorted((self.data / "spool").glob("data*.seg"))[-2:]:
                with path.open("ab") as file:
                    file.write(self.rng.choice([bytes(200), self.rng.randbytes(99), b"\x40\0\0\0half a frame"]))
            await self.start()
        elif how == "full":
            return await self.full()
        elif how == "readonly":
            return await self.readonly()
        return None

    async def said_lost(self) -> int:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with self.session.get(self.url + "/metrics") as r:
                    for line in (await r.text()).splitlines():
                        if line.startswith("slipstream_capture_lost_total"):
                            return int(float(line.split()[-1]))
                return 0
            await asyncio.sleep(0.05)
        raise AssertionError("no metrics")

    async def count_anew(self) -> None:
        """A killed worker's counts are lost with it: what the proxy says of this round begins at 0."""
        await self.kill_all()
        shutil.rmtree(self.data / "metrics", ignore_errors=True)
        await self.start()

    async def full(self) -> int:
        await self.count_anew()
        ballast = self.data / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(65536))
        with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
            while file.write(b"x"):
                pass
        await asyncio.sleep(0.4)
        ballast.unlink()
        return 0

    async def readonly(self) -> int | None:
        await self.kill_all()
        spool = str(self.data / "spool")
        shutil.rmtree(self.data / "metrics", ignore_errors=True)
        if subprocess.run(["mount", "--bind", spool, spool], capture_output=True, check=False).returncode:
            await self.start()
            return None
        subprocess.run(["mount", "-o", "remount,ro,bind", spool], capture_output=True, check=False)
        try:
            await self.start()
            await asyncio.sleep(0.4)
        finally:
            subprocess.run(["mount", "-o", "remount,rw,bind", spool], capture_output=True, check=False)
            subprocess.run(["umount", "-l", spool], capture_output=True, check=False)
        return 0

    # the check

    async def sql(self, query: str) -> list[list[object]]:
        async with self.session.post(f"{self.url}{API}/sql", json={"query": query, "limit": 100_000}) as r:
            body = await r.json()
            if r.status != 200:
                raise aiohttp.ClientError(str(body))
            return body["rows"]

    async def check(self, begin: str, before: int | None, *, patience: float = PATIENCE) -> None:
        """All that was acknowledged in episodes whose names begin so. What the proxy said that it lost is no loss that nobody was told of."""
        end, allowed = time.monotonic() + patience, 0
        while True:
            try:
                calls, rewards = await self.there(begin)
                missing = self.missing(begin, calls, rewards)
                if before is not None:  # the workers write their numbers down once a second
                    allowed = max(allowed, await self.said_lost() - before)
                if missing <= allowed or time.monotonic() > end:
                    break
            except (aiohttp.ClientError, TimeoutError, OSError) as e:
                assert time.monotonic() < end, f"the store cannot be asked: {e}"
            await asyncio.sleep(0.1)
        self.found.lost += max(0, missing - allowed)
        self.told.count -= min(missing, allowed)
        if allowed:
            self.excused.add(begin)
        if missing > allowed:
            self.said(f"lost: {missing - allowed} of {begin}; {allowed} were said; {self.where(begin, calls)}")
        for rows, told in ((calls, self.told.calls), (rewards, self.told.rewards)):
            self.found.returned += sum(e in self.told.gone for e in rows)
            for episode, ids in rows.items():
                self.found.doubled += len(ids) - len(set(ids))
                mine = [i for i in told.get(episode, []) if i in set(ids)]
                places = [ids.index(i) for i in mine]
                if places != sorted(places):
                    self.found.disordered += 1
                    self.said(f"out of order: {episode} {mine} {ids}")

    async def there(self, begin: str) -> tuple[dict[str, list[str]], dict[str, list[float]]]:
        calls, rewards = {}, {}
        like = f"episode like '{begin}%'"
        for episode, call in await self.sql(f"select episode, id from calls where {like} order by episode, number"):
            calls.setdefault(episode, []).append(call)
        for episode, value in await self.sql(f"select episode, value from rewards where name = 'score' and {like} order by episode, ts, id"):  # fmt: skip
            rewards.setdefault(episode, []).append(value)
        return calls, rewards

    def missing(self, begin: str, calls, rewards) -> int:
        count = 0
        for rows, told in ((calls, self.told.calls), (rewards, self.told.rewards)):
            count += sum(len(set(t) - set(rows.get(e, ()))) for e, t in told.items() if e.startswith(begin))
        return count

    async def check_again(self, rounds: int) -> None:
        """All rounds once more at the end: what was there then is there still."""
        before, self.found = self.found, Found()
        for n in range(rounds):
            if f"r{n:05d}" in self.excused:
                continue
            await self.check(f"r{n:05d}", None, patience=10.0)
        self.found.lost = max(before.lost, self.found.lost)
        self.found.disordered = max(before.disordered, self.found.disordered)
        self.found.doubled = max(before.doubled, self.found.doubled)
        self.found.returned = max(before.returned, self.found.returned)

    def where(self, begin: str, calls: dict[str, list[str]]) -> str:
        """Of the calls that are not in the store: how many stand in the spool."""
        gone = {i for e, ids in self.told.calls.items() if e.startswith(begin) for i in ids} - {
            i for ids in calls.values() for i in ids
        }
        spooled = {
            f.head["id"] for s in list_segments(self.data / "spool").values() for _, p in s for f in read_segment(p)
        }
        return f"{len(gone)} calls are missing, {len(gone & spooled)} of them in the spool"

    # rounds

    async def round(self, n: int, how: str) -> None:
        begin = f"r{n:05d}"
        stop = asyncio.Event()
        agents = [asyncio.create_task(self.agent(f"{begin}-{a}", stop)) for a in range(AGENTS)]
        try:
            await asyncio.sleep(self.rng.uniform(0.2, 0.6))
            if n and self.rng.random() < 0.3:
                old = asyncio.create_task(self.forget_one(begin))
                await asyncio.sleep(self.rng.uniform(0.0, 0.2))
            else:
                old = None
            before = await self.hurt(how)
            assert await self.ready(), (self.folder / "proxy.log").read_text()[-4000:]
            await asyncio.sleep(0.2)
            if old:
                await old
        finally:
            stop.set()
            await asyncio.gather(*agents, return_exceptions=True)
        await self.check(begin, before)
        if self.kills >= 3:  # a child that dies young waits longer each time
            await self.stop()
            await self.start()

    async def run(self, rounds: int, seconds: float, hurts: list[str] | None = None) -> dict[str, object]:
        kinds = [*KILLS, *WAL, "tail", *(NEED_MOUNT if self.mounts else ())]
        if not self.mounts:
            self.said("skipped: full, readonly (no right to mount a small disk)")
        self.said("skipped: clock jumps (there is no libfaketime)")
        end = time.monotonic() + seconds
        n = 0
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as self.session:
            await self.start()
            try:
                while n < rounds and time.monotonic() < end:
                    how = hurts[n % len(hurts)] if hurts else self.rng.choice(kinds)
                    started = time.monotonic()
                    await self.round(n, how)
                    n += 1
                    self.said(f"round {n}: {how}, {time.monotonic() - started:.1f} s, {self.told.count} acknowledged, {self.found}")  # fmt: skip
                await self.check_again(n)
            finally:
                await self.stop()
        return {"rounds": n, "acknowledged": self.told.count, **vars(self.found), "refused_starts": self.refused, "hurts": dict(self.hurts)}  # fmt: skip


async def run(folder: Path, rounds: int, seed: int, *, seconds: float = 1e9, mount: bool = True, hurts: list[str] | None = None, said=print) -> dict[str, object]:  # fmt: skip
    """``rounds`` of it, or as many as fit into ``seconds``."""
    engine = await FakeEngine().start()
    disk = mount and mounted(folder / "data", 1024)
    try:
        return await Chaos(folder, engine, seed, mounts=disk, said=said).run(rounds, seconds, hurts)
    finally:
        await engine.stop()
        if disk:
            subprocess.run(["umount", "-l", str(folder / "data")], capture_output=True, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1e9, help="end after this time, whatever is left")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hurts", nargs="*", help="these in turn, not at random")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started ends with it
    folder = Path(tempfile.mkdtemp(prefix="slipstream-chaos-"))
    found = asyncio.run(run(folder, args.rounds, args.seed, seconds=args.seconds, hurts=args.hurts, said=lambda s: print(s, flush=True)))  # fmt: skip
    bad = any(found[name] for name in ("lost", "doubled", "disordered", "returned", "refused_starts"))
    if not bad:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"logs: {folder}")
    print(json.dumps(found))
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
