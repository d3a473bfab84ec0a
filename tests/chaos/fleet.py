"""Two proxies with two workers each on one PostgreSQL, in front of two engines, with a judge and who leases batches: all of it is killed or hangs.

Agents change their proxy in the middle of an episode, and as OpenAI's clients do, they send a call that broke twice more, here to the other
proxy. Nothing that a proxy acknowledged may be lost, doubled or out of order, and no call may fail but by the engine.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import aiohttp
from tests.chaos.evidence import LEFT_OUT, keep
from tests.chaos.hurts import Hurts
from tests.chaos.running import API, PATIENCE, children
from tests.chaos.sidecars import trained_twice
from tests.support import ROOT, slipstream
from tests.support.fake_engine import FakeEngine

AGENTS = 6
TRIES = 3
HANG = 1.5
"""Seconds for which something hangs."""
UPSTREAM = 1.0
"""``proxy.upstream_timeout``."""
HURTS = (
    "worker",
    "control",
    "proxy",
    "control_hangs",
    "store_hangs",
    "engine_hangs",
    "engines_hang",
    "worker_stops",
    "copied",
    "judge",
    "trainer",
)
NEED_DISK = ("full",)
ENGINES_FAULT = ("model's server", "no engine is up")


class Member(Hurts):
    """One proxy of the fleet."""

    def __init__(self, folder: Path, engines: list[FakeEngine], store: str, seed: int) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(folder, engines[0], seed)
        self.engines, self.store = engines, store

    def settings(self) -> dict[str, dict[str, object] | str]:
        tree = super().settings()
        engine, proxy = tree["engine"], tree["proxy"]
        assert isinstance(engine, dict) and isinstance(proxy, dict)
        engine["urls"] = [e.url for e in self.engines]
        proxy["upstream_timeout"] = UPSTREAM
        more: dict[str, dict[str, object] | str] = {
            "store": {"url": self.store, "sql_timeout": 60.0},
            "adapters": {"dir": str(self.folder.parent / "adapters")},
            "groups": {"size": 4},
        }
        return {**tree, **more, "judge": {"function": "tests.chaos.sidecars:score"}}


class Fleet:
    def __init__(
        self,
        folder: Path,
        engines: list[FakeEngine],
        store: str,
        postmaster: int,
        seed: int,
        said: Callable[[str], None],
    ) -> None:
        self.folder, self.engines, self.postmaster, self.said = folder, engines, postmaster, said
        self.rng = random.Random(seed)
        self.members = [Member(folder / name, engines, store, seed + i) for i, name in enumerate("ab")]
        self.told: dict[str, list[str]] = {}
        """Acknowledged calls by episode, in order."""
        self.rewards: dict[str, set[float]] = {}
        self.count = self.lost = self.doubled = self.out_of_order = self.failed_by_us = self.failed_by_engine = 0
        self.twins_served = 0
        self.excused: set[str] = set()
        self.hurts: collections.Counter[str] = collections.Counter()
        self.engine_was_away = float("-inf")
        self.sidecars: dict[str, subprocess.Popen[bytes]] = {}
        self.session: aiohttp.ClientSession

    # the load

    async def agent(self, name: str, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set():
            episode = f"{name}-{number}"
            number += 1
            member = self.rng.randrange(2)
            for turn in range(5):
                if self.rng.random() < 0.4:
                    member = 1 - member
                await self.call(episode, turn, member)
                await asyncio.sleep(0.01)
                if stop.is_set():
                    return
            await self.reward(episode, float(number), member)

    async def call(self, episode: str, turn: int, member: int) -> None:
        whys = []
        for again in range(TRIES):
            whys.append(await self.post(self.members[(member + again) % 2].url, episode, turn))
            if not whys[-1]:
                return
            await asyncio.sleep(0.5 * 2**again)
        why = "; ".join(whys)
        if any(fault in why for fault in ENGINES_FAULT) and time.monotonic() - self.engine_was_away < 10.0:
            self.failed_by_engine += 1
            return
        self.failed_by_us += 1
        self.said(f"failed by us: {episode} {turn}: {why}")

    async def post(self, url: str, episode: str, turn: int) -> str:
        """Why it is not acknowledged; "": it is."""
        messages = [{"role": "user", "content": f"{episode} {i}"} for i in range(turn + 1)]
        body = {"model": "tiny", "messages": messages, "temperature": 1.0, "stream": turn % 2 == 1}
        headers = {"x-slipstream-episode": episode, "x-slipstream-task": episode.split("-")[1]}
        try:
            async with self.session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as r:
                text = await r.read()
            if r.status == 200 and (b"data: [DONE]" in text if body["stream"] else b'"choices"' in text):
                self.told.setdefault(episode, []).append(r.headers["x-slipstream-call"])
                self.count += 1
                return ""
            return f"{r.status} {text[-300:].decode(errors='replace')}"
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            return f"{type(e).__name__} {e}"

    async def reward(self, episode: str, value: float, member: int) -> None:
        """Half of them have a key, and are sent again where nobody answered. The others are sent once."""
        body = {"name": "score", "value": value, "done": True}
        if keyed := self.rng.random() < 0.5:
            body["key"] = "score"
        for again in range(TRIES if keyed else 1):
            url = f"{self.members[(member + again) % 2].url}{API}/episodes/{episode}/rewards"
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with self.session.post(url, json=body) as r:
                    if r.status == 200:
                        self.rewards.setdefault(episode, set()).add(value)
                        self.count += 1
                        return
            await asyncio.sleep(0.5 * 2**again)

    # the hurts

    async def hurt(self, how: str, begin: str) -> tuple[Member, int | None]:
        member = self.rng.choice(self.members)
        before = None
        if how == "store_hangs":
            await member.stand_still([self.postmaster, *children(self.postmaster)])
        elif how == "control_hangs":
            pid = member.child("control")
            await member.stand_still([pid] if pid else [])
        elif how == "copied":
            await self.copied(member, begin)
        elif how in ("engine_hangs", "engines_hang"):
            await self.hang(self.engines if how == "engines_hang" else [self.rng.choice(self.engines)])
        elif how in ("judge", "trainer"):
            self.sidecars[how].kill()
            await asyncio.to_thread(self.sidecars[how].wait)
            self.start_sidecar(how)
        else:
            before = await member.hurt(how)
        return member, before

    async def copied(self, member: Member, begin: str) -> None:
        """The folder of a proxy that runs is copied, as with a cloned machine. The copy has to refuse to start until it is made a proxy
        of its own; what it acknowledges counts as what the others do.
        """
        twin = Member(self.folder / "twin", self.engines, member.store, self.rng.randrange(2**30))
        twin.session = self.session
        shutil.rmtree(twin.data, ignore_errors=True)
        with contextlib.suppress(shutil.Error):  # what went while it was copied
            shutil.copytree(
                member.data, twin.data, ignore=shutil.ignore_patterns(*LEFT_OUT, "proxy.json", "limits", "hangs")
            )
        try:
            if await twin.try_start():
                self.twins_served += 1
                await self.serve(twin, f"{begin}-copy")
            assert self.twins_served or "--new-instance" in twin.log(), twin.log()
            await twin.stop()
            await twin.start(flags=("--new-instance",))
            await self.serve(twin, f"{begin}-own")
        finally:
            await twin.stop()

    async def serve(self, member: Member, episode: str) -> None:
        for turn in range(3):
            await self.post(member.url, episode, turn)

    async def hang(self, engines: list[FakeEngine]) -> None:
        held = asyncio.Event()
        self.engine_was_away = float("inf")
        for engine in engines:
            engine.hold = held
        await asyncio.sleep(HANG + UPSTREAM)
        for engine in engines:
            engine.hold = None
        held.set()
        self.engine_was_away = time.monotonic()

    def start_sidecar(self, how: str) -> None:
        url = self.members[0].url
        argv = slipstream("judge", "--config", str(self.members[0].folder / "slipstream.toml"), "--url", url)
        if how == "trainer":
            argv = [sys.executable, "-m", "tests.chaos.sidecars", "lease", url, str(self.folder / "trained")]
        with (self.folder / f"{how}.log").open("ab") as log:
            self.sidecars[how] = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=ROOT)

    # the check

    async def sql(self, query: str) -> list[list[object]]:
        url = self.rng.choice(self.members).url
        async with self.session.post(f"{url}{API}/sql", json={"query": query, "limit": 100_000}) as r:
            body = await r.json()
            if r.status != 200:
                raise aiohttp.ClientError(str(body))
            rows: list[list[object]] = body["rows"]
            return rows

    async def there(self, begin: str) -> tuple[dict[str, list[str]], collections.Counter[tuple[str, float]]]:
        """Calls by episode, in order, and rewards. In one query: each has a process of its own."""
        calls: dict[str, list[str]] = collections.defaultdict(list)
        rewards: collections.Counter[tuple[str, float]] = collections.Counter()
        like = f"episode like '{begin}%'"
        query = f"""select 'call' as kind, episode, number as place, id, 0.0 as value from calls where {like} union all
            select 'reward', episode, seq, '', value from rewards where name = 'score' and {like} order by kind, episode, place"""
        for kind, episode, _, call, value in await self.sql(query):
            if kind == "call":
                calls[str(episode)].append(str(call))
            else:
                rewards[str(episode), float(str(value))] += 1
        return calls, rewards

    async def check(
        self,
        begin: str,
        *,
        allowed: Callable[[], Awaitable[int]] | None,
        patience: float = PATIENCE,
        but: Collection[str] = (),
    ) -> None:
        """All that was acknowledged in episodes whose names begin so, ``but`` those of some rounds; ``allowed``: what a proxy
        said that it lost.
        """
        end, excused = time.monotonic() + patience, 0
        was = (self.lost, self.doubled, self.out_of_order)
        mine = {e: calls for e, calls in self.told.items() if e.startswith(begin) and e[:6] not in but}
        scores = {e: vs for e, vs in self.rewards.items() if e.startswith(begin) and e[:6] not in but}
        stored: dict[str, list[str]] = collections.defaultdict(list)
        rewarded: collections.Counter[tuple[str, float]] = collections.Counter()
        missing = 0
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                stored, rewarded = await self.there(begin)
                missing = sum(len(set(calls) - set(stored[e])) for e, calls in mine.items())
                missing += sum((e, v) not in rewarded for e, vs in scores.items() for v in vs)
                if missing and allowed is not None:
                    excused = max(excused, await allowed())
                if missing <= excused:
                    break
            if time.monotonic() > end:
                break
            await asyncio.sleep(0.1)
        self.lost += max(0, missing - excused)
        if excused:
            self.excused.add(begin)
        self.doubled += sum(count - 1 for count in rewarded.values())
        for episode, calls in mine.items():
            there = stored[episode]
            self.doubled += len(there) - len(set(there))
            places = [there.index(c) for c in calls if c in there]
            if places != sorted(places):
                self.out_of_order += 1
                self.said(f"out of order: {episode} {places}")
        if missing > excused:
            self.said(f"lost: {missing - excused} of {begin}")
        bad = (self.lost, self.doubled, self.out_of_order)
        if bad != was:
            facts = {"begin": begin, "told": mine, "rewards": scores, "stored": stored, "rewarded": sorted(rewarded)}
            parts = {m.folder.name: m.data / "spool" for m in self.members}
            self.said(f"kept: {keep(self.folder, begin, parts, facts)}")

    # rounds

    async def round(self, n: int, how: str) -> None:
        begin = f"f{n:05d}"
        stop = asyncio.Event()
        agents = [asyncio.create_task(self.agent(f"{begin}-{a}", stop)) for a in range(AGENTS)]
        before: int | None = None
        try:
            await asyncio.sleep(self.rng.uniform(0.2, 0.6))
            self.hurts[how] += 1
            member, before = await self.hurt(how, begin)
            for each in self.members:
                assert await each.ready(), each.log()
            await asyncio.sleep(0.2)
        finally:
            stop.set()
            await asyncio.gather(*agents)
        await self.check(begin, allowed=member.said_lost if before is not None else None)
        for each in self.members:
            if each.kills >= 3:  # a child that dies young waits longer each time
                await each.stop()
                await each.start()

    async def run(self, rounds: int, seconds: float, hurts: list[str] | None, *, disk: bool) -> dict[str, object]:
        end, n = time.monotonic() + seconds, 0
        kinds = [*HURTS, *(NEED_DISK if disk else ())]
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as self.session:
            for member in self.members:
                member.session = self.session
            try:
                await asyncio.gather(*(m.start() for m in self.members))
                for how in ("judge", "trainer"):
                    self.start_sidecar(how)
                while n < rounds and time.monotonic() < end:
                    how = hurts[n % len(hurts)] if hurts else self.rng.choice(kinds)
                    started = time.monotonic()
                    await self.round(n, how)
                    n += 1
                    self.said(f"fleet round {n}: {how}, {time.monotonic() - started:.1f} s, {json.dumps(self.found())}")
                for hundred in range(0, n, 100):  # what was there then is there still
                    await self.check(f"f{hundred // 100:03d}", allowed=None, patience=20.0, but=self.excused)
            finally:
                for process in self.sidecars.values():
                    process.kill()
                    process.wait()
                for member in self.members:
                    await member.stop()
        self.doubled += len(list(trained_twice(self.folder / "trained")))
        return {"rounds": n, **self.found(), "hurts": dict(self.hurts)}

    def found(self) -> dict[str, int]:
        names = ("lost", "doubled", "out_of_order", "failed_by_us", "failed_by_engine", "twins_served")
        refused = sum(m.refused for m in self.members)
        return {"acknowledged": self.count, **{n: int(getattr(self, n)) for n in names}, "refused_starts": refused}
