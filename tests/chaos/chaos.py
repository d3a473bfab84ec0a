"""Load on a real proxy while processes are killed, files broken and disks filled: what was acknowledged is there, once, in order.

``python tests/chaos/chaos.py --rounds 200 --seed 1``: half of the rounds on one proxy with DuckDB, half on two proxies with PostgreSQL
(``fleet.py``); ``--only`` chooses one. The last line is a JSON object: rounds, acknowledged, lost, doubled, out_of_order, returned (forgotten and
there again), refused_starts, failed_by_us (calls that failed for another reason than the engine; counted where there is another proxy to
turn to), said (what a store that was put in place of a newer one lacks, of which the proxy says so), unsaid (it does not), twins_served
(copies of a data folder in use that started as if they were it), expired (rewards of episodes without a call, which wait for it for ``reward.orphan_ttl``: no loss), and how often each hurt was done.
Where a figure is bad, the run keeps what shows why: see ``evidence.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import json
import logging
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.chaos.evidence import keep
from tests.chaos.fleet import Fleet
from tests.chaos.hurts import KILLS, NEED_MOUNT, STOPS, SYSCALLS, WAL, Hurts, clock_library, mounted, strace_works
from tests.chaos.running import API, PATIENCE
from tests.chaos.told import Found, Stored, Told
from tests.support.fake_engine import FakeEngine
from tests.support.postgres import postgres_server

from slipstream_proxy.log.segments import list_segments, read_segment

AGENTS = 4


class Chaos(Hurts):
    def __init__(self, folder: Path, engine: FakeEngine, seed: int, *, kinds: list[str], said=print) -> None:
        super().__init__(folder, engine, seed)
        self.kinds, self.said = kinds, said
        self.told, self.found = Told(), Found()
        self.hurts: collections.Counter[str] = collections.Counter()
        self.excused: set[str] = set()
        """Rounds in which the proxy said that it could not keep some calls."""
        self.rewards = 0

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
            else:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                    await self.end(episode)

    async def call(self, episode: str, turn: int) -> None:
        messages = [{"role": "user", "content": f"{episode} {i}"} for i in range(turn + 1)]
        body = {"model": "tiny", "messages": messages, "temperature": 1.0, "stream": turn % 2 == 1}
        headers = {"x-slipstream-episode": episode, "x-slipstream-task": episode.split("-", maxsplit=1)[0], "x-slipstream-tag-by": "chaos"}  # fmt: skip
        async with self.session.post(self.url + "/v1/chat/completions", json=body, headers=headers) as r:
            text = await r.read()
        if r.status == 200 and (b"data: [DONE]" in text if body["stream"] else b'"choices"' in text):
            self.told.calls.setdefault(episode, []).append(r.headers["x-slipstream-call"])
            self.told.count += 1

    async def end(self, episode: str) -> None:
        async with self.session.post(f"{self.url}{API}/episodes/{episode}/done") as r:
            if r.status == 200:
                self.told.ended.add(episode)
                self.told.count += 1

    async def reward(self, episode: str) -> None:
        """One in four has a key of its own: the others are told apart by nothing but what the proxy gives them."""
        self.rewards += 1
        value = float(self.rewards)
        body = {"name": "score", "value": value}
        match self.rewards % 4:
            case 0:
                body["key"] = f"k{value}"
            case 1:
                body["source"] = "human"
        async with self.session.post(f"{self.url}{API}/episodes/{episode}/rewards", json=body) as r:
            if r.status == 200:
                self.told.rewards.setdefault(episode, []).append(value)
                self.told.count += 1
                if not (await r.json())["known"]:
                    self.told.early.add((episode, value))

    async def forget_one(self, begin: str) -> None:
        """One of an earlier round, which nobody works on any more. Forgetting takes a snapshot, after which the spool's older segments go."""
        episode = self.rng.choice(sorted(e for e in self.told.calls if not e.startswith(begin)))
        self.told.forget(episode)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with self.session.delete(f"{self.url}{API}/episodes/{episode}") as r:
                if r.status == 200:
                    self.told.gone.add(episode)

    # the check

    async def sql(self, query: str) -> list[list[object]]:
        async with self.session.post(f"{self.url}{API}/sql", json={"query": query, "limit": 100_000}) as r:
            body = await r.json()
            if r.status != 200:
                raise aiohttp.ClientError(str(body))
            return body["rows"]

    async def check(self, begin: str, before: int | None) -> None:
        """All that was acknowledged in a round. What the proxy said that it lost is no loss that nobody was told of."""
        allowed = 0

        async def enough(stored: Stored) -> bool:
            nonlocal allowed
            if before is not None:  # the workers write their numbers down once a second
                allowed = max(allowed, await self.said_lost() - before)
            return len(self.told.missing(begin, stored)) <= allowed

        stored = await self.ask(begin, enough, PATIENCE)
        missing = self.told.missing(begin, stored)
        self.told.count -= min(len(missing), allowed)
        if allowed:
            self.excused.add(begin)
        self.judge(begin, stored, missing if len(missing) > allowed else [], allowed)

    async def check_older(self) -> None:
        """Of all rounds: what an older store has no way to know is said, and no forgotten run is back."""

        def gone(stored: Stored) -> list[tuple[str, str | float]]:
            missing = self.told.missing("r", stored, self.excused)
            return [(e, one) for e, one in missing if not self.told.may_expire(e, one, stored)]

        async def enough(stored: Stored) -> bool:
            return not gone(stored)

        stored = await self.ask("r", enough, 15.0)
        missing = gone(stored)
        name = "said" if self.said_older() else "unsaid"
        setattr(self.found, name, getattr(self.found, name) + len(missing))
        self.told.drop(missing)
        self.told.count -= len(missing)
        self.judge("r", stored, [], 0)

    async def check_again(self, rounds: int) -> None:
        """All rounds once more at the end: what was there then is there still, but for rewards that no call came to."""
        before, self.found = self.found, Found()
        for hundred in range(0, rounds, 100):
            begin = f"r{hundred // 100:03d}"

            def gone(stored: Stored, begin: str = begin) -> list[tuple[str, str | float]]:
                missing = self.told.missing(begin, stored, self.excused)
                return [(e, one) for e, one in missing if not self.told.may_expire(e, one, stored)]

            async def enough(stored: Stored, gone=gone) -> bool:
                return not gone(stored)

            stored = await self.ask(begin, enough, 20.0)
            lost = gone(stored)
            self.found.expired += len(self.told.missing(begin, stored, self.excused)) - len(lost)
            self.judge(begin, stored, lost, 0)
        for name, count in vars(before).items():
            setattr(self.found, name, max(count, getattr(self.found, name)))

    async def ask(self, begin: str, enough: Callable[[Stored], Awaitable[bool]], patience: float) -> Stored:
        """What the store has of these episodes, when it is enough or that long has passed. A machine that is busy with
        other work answers late.
        """
        end, given_up = time.monotonic() + patience, time.monotonic() + PATIENCE
        while True:
            try:
                stored = await self.there(begin)
                if await enough(stored) or time.monotonic() > end:
                    return stored
            except (aiohttp.ClientError, TimeoutError, OSError) as e:
                assert time.monotonic() < given_up, f"the store cannot be asked: {type(e).__name__} {e}"
            await asyncio.sleep(0.1)

    def judge(self, begin: str, stored: Stored, missing: list[tuple[str, str | float]], allowed: int) -> None:
        was = dataclasses.replace(self.found)
        self.found.lost += max(0, len(missing) - allowed)
        for rows, told in ((stored.calls, self.told.calls), (stored.rewards, self.told.rewards)):
            self.found.returned += sum(e in self.told.gone for e in rows)
            for episode, ids in rows.items():
                if episode[:6] in self.excused and len(begin) < 6:
                    continue
                self.found.doubled += len(ids) - len(set(ids))
                mine = [i for i in told.get(episode, []) if i in set(ids)]
                if not in_order(mine, ids):
                    self.found.out_of_order += 1
                    self.said(f"out of order: {episode} {mine} {ids}")
        if missing:
            self.said(
                f"lost: {len(missing) - allowed} of {begin}; {allowed} were said; {missing[:20]}; {self.spooled(missing)}"
            )
        if self.found != was and self.found.bad():
            facts = {"begin": begin, "missing": missing, "told": vars(self.told), "stored": vars(stored)}
            self.said(f"kept: {keep(self.folder, begin, {'data': self.data}, facts)}")

    async def there(self, begin: str) -> Stored:
        """In one query: each has a process of its own."""
        stored = Stored()
        like = f"episode like '{begin}%'"
        query = f"""select 'call' as kind, episode, number as place, id, 0.0 as value from calls where {like} union all
            select 'reward', episode, seq, '', value from rewards where name = 'score' and {like} union all
            select 'ended', id, 0, '', 0.0 from episodes where state = 'done' and id like '{begin}%' order by kind, episode, place"""
        for kind, episode, _, call, value in await self.sql(query):
            if kind == "call":
                stored.calls.setdefault(str(episode), []).append(str(call))
            elif kind == "ended":
                stored.ended.add(str(episode))
            else:
                stored.rewards.setdefault(str(episode), []).append(float(str(value)))
        return stored

    def spooled(self, missing: list[tuple[str, str | float]]) -> str:
        """How many of the missing calls stand in the spool."""
        calls = {one for _, one in missing if isinstance(one, str) and one != "end mark"}
        there = {
            f.head["id"] for s in list_segments(self.data / "spool").values() for _, p in s for f in read_segment(p)
        }
        return f"{len(calls)} are calls, {len(calls & there)} of them in the spool"

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
            self.hurts[how] += 1
            before = await self.hurt(how)
            assert await self.ready(), self.log()
            await asyncio.sleep(0.2)
            if old:
                await old
        finally:
            stop.set()
            await asyncio.gather(*agents, return_exceptions=True)
        if how == "older":
            await self.check_older()
        await self.check(begin, before)
        if self.kills >= 3:  # a child that dies young waits longer each time
            await self.stop()
            await self.start()

    async def run(self, rounds: int, seconds: float, hurts: list[str] | None = None) -> dict[str, object]:
        end = time.monotonic() + seconds
        n = 0
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as self.session:
            await self.start()
            try:
                while n < rounds and time.monotonic() < end:
                    how = hurts[n % len(hurts)] if hurts else self.rng.choice(self.kinds)
                    started = time.monotonic()
                    await self.round(n, how)
                    n += 1
                    self.said(f"round {n}: {how}, {time.monotonic() - started:.1f} s, {self.told.count} acknowledged, {self.found}")  # fmt: skip
                await self.check_again(n)
            except AssertionError:  # it did not come up again, or its store cannot be asked
                self.said(f"kept: {keep(self.folder, 'stuck', {'data': self.data}, {'round': n, 'log': self.log()})}")
                raise
            finally:
                await self.stop()
        return {"rounds": n, "acknowledged": self.told.count, **vars(self.found), "refused_starts": self.refused, "hurts": dict(self.hurts)}  # fmt: skip


def in_order(told: list, stored: list) -> bool:
    places = [stored.index(one) for one in told]
    return places == sorted(places)


def kinds_here(folder: Path, said, *, disk: bool) -> list[str]:
    """What can be done on this machine; what cannot is said."""
    kinds = [*KILLS, *STOPS, *WAL, "tail", "older"]
    for there, more, why in (
        (disk, NEED_MOUNT, "no right to mount a small disk"), (strace_works(), SYSCALLS, "strace cannot trace here"),
        (clock_library(folder) is not None, ("clock",), "no C compiler"),
    ):  # fmt: skip
        if there:
            kinds += more
        else:
            said(f"skipped: {', '.join(more)} ({why})")
    return kinds


async def run(folder: Path, rounds: int, seed: int, *, seconds: float = 1e9, mount: bool = True, hurts: list[str] | None = None, said=print) -> dict[str, object]:  # fmt: skip
    """``rounds`` of it, or as many as fit into ``seconds``."""
    engine = await FakeEngine().start()
    disk = mount and mounted(folder / "data", 1024)
    kinds = kinds_here(folder, said, disk=disk)
    try:
        return await Chaos(folder, engine, seed, kinds=kinds, said=said).run(rounds, seconds, hurts)
    finally:
        await engine.stop()
        if disk:
            subprocess.run(["umount", "-l", str(folder / "data")], capture_output=True, check=False)


async def run_fleet(folder: Path, rounds: int, seed: int, *, seconds: float = 1e9, mount: bool = True, hurts: list[str] | None = None, said=print) -> dict[str, object]:  # fmt: skip
    """The same of two proxies on one PostgreSQL."""
    engines = [await FakeEngine().start() for _ in range(2)]
    names = "ab" if mount else ""
    disks = [mounted(folder / name / "data", 512) for name in names]
    try:
        with postgres_server() as server:
            fleet = Fleet(folder, engines, server.url, server.pid, seed, said)
            return await fleet.run(rounds, seconds, hurts, disk=bool(disks) and all(disks))
    finally:
        for engine in engines:
            await engine.stop()
        for name in names:
            subprocess.run(["umount", "-l", str(folder / name / "data")], capture_output=True, check=False)


BAD = ("lost", "doubled", "out_of_order", "returned", "unsaid", "twins_served", "refused_starts", "failed_by_us")


def together(found: list[dict[str, object]]) -> dict[str, object]:
    """Sums over all rounds."""
    totals: collections.Counter[str] = collections.Counter(dict.fromkeys(BAD, 0))
    hurts: collections.Counter[str] = collections.Counter()
    for one in found:
        totals.update({k: v for k, v in one.items() if isinstance(v, int)})
        done = one["hurts"]
        assert isinstance(done, dict)
        hurts.update(done)
    return {**totals, "hurts": dict(hurts)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1e9, help="end after this time, whatever is left")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hurts", nargs="*", help="these in turn, not at random (with --only)")
    parser.add_argument("--only", choices=["duckdb", "postgres"], help="one proxy with DuckDB, or two with PostgreSQL")
    args = parser.parse_args()
    logging.getLogger("aiohttp.server").disabled = True  # the engine's clients are killed all the time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started ends with it
    folder = Path(tempfile.mkdtemp(prefix="slipstream-chaos-"))
    parts = [part for name, part in (("duckdb", run), ("postgres", run_fleet)) if args.only in (None, name)]
    found: list[dict[str, object]] = []
    for i, part in enumerate(parts):
        rounds = args.rounds // len(parts) + (i < args.rounds % len(parts))
        place = folder / part.__name__
        place.mkdir()
        found.append(asyncio.run(part(place, rounds, args.seed, seconds=args.seconds / len(parts), hurts=args.hurts, said=lambda s: print(s, flush=True))))  # fmt: skip
    result = together(found)
    bad = any(result[name] for name in BAD)
    if not bad:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"logs: {folder}")
    print(json.dumps(result))
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
