"""How the store behaves when it has grown: the same questions at few and at many episodes.

``python benchmarks/store/bench_growth.py [--small 10000] [--large 1000000]``. Its stores are made with SQL, in seconds. The
last line is one JSON object: new runs' first calls, the routes' growth, what forgetting costs others, and idle CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from hashlib import md5
from itertools import count
from pathlib import Path

import long_runs

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.fake_engine import LoraEngine
from tests.support.plane import API, Plane, make_config

from slipstream_proxy.store import open_store, schema
from slipstream_proxy.store.protocol import Store
from slipstream_proxy.store.rows import CallRow, EpisodeRow, GroupRow, RewardRow
from slipstream_proxy.store.values import Rules

NOW = float(int(time.time()))
CALLS = 6
GROUP = 8
ID = "'e' || md5(i::VARCHAR)"
EID = f"'-/' || {ID}"
BLOB = "'abcdefgh'::BLOB"


def _columns(fields: tuple[str, ...], values: dict[str, str]) -> str:
    return ", ".join(values.get(f, "NULL") for f in fields)


def name_of(number: int) -> str:
    """An episode's id: names do not sort by time, as agents' do not."""
    return "e" + md5(str(number).encode(), usedforsecurity=False).hexdigest()


RUNS = 128
"""New runs at once."""


def fill(store: Store, episodes: int) -> None:
    """Episodes of ``CALLS`` calls over ten days, done, rewarded and trained on; one in a thousand is open."""
    db = store.db  # type: ignore[attr-defined]
    days = [schema.day_of(NOW - 86_400 * n) for n in range(10)]
    store.calls.days.ensure(days)  # type: ignore[attr-defined]
    started = f"{NOW} - 864000.0 * ({episodes} - i) / {episodes}"
    with db.write() as tx:
        tx.run(f"CREATE TEMP TABLE n AS SELECT i, {started} AS began FROM range({episodes}) r(i)")
        ep = {
            "eid": EID, "key": "'-'", "id": ID, "task": f"'t' || (i // {GROUP})", "split": "'train'", "tags": "'{}'", "model": "'m'",
            "adapter": "'m'", "arm": "'live'", "state": "CASE WHEN i % 1000 = 999 THEN 'open' ELSE 'done' END", "started": "began",
            "last_at": "began + 10", "ended": "began + 10", "calls": str(CALLS), "trained_calls": str(CALLS), "prompt_tokens": "600",
            "completion_tokens": "120", "reward": "(i % 10) / 10.0", "grp": f"'g' || (i // {GROUP})", "grouped": "TRUE", "alike": "'a'",
            "adapters": "'[\"m\"]'", "retried": "FALSE", "untagged": "FALSE", "last_end": f"CASE WHEN i % 1000 = 999 THEN {NOW} ELSE began + 10 END", "idle": "FALSE",
        }  # fmt: skip
        fields = tuple(EpisodeRow.__dataclass_fields__)
        tx.run(f"INSERT INTO t_episodes SELECT {_columns(fields, ep)} FROM n")
        reward = {"id": "'m' || i", "seq": "i", "eid": EID, "name": "'reward'", "source": "'agent'", "value": "(i % 10) / 10.0", "meta": "'{}'", "ts": "began + 10"}  # fmt: skip
        tx.run(f"INSERT INTO t_rewards SELECT {_columns(RewardRow._fields, reward)} FROM n")
        tx.run(f"INSERT INTO t_pins SELECT {EID}, 'm', 'm', 'live', began, i % 1000 = 999, '' FROM n")
        group = {
            "id": "'g' || i", "bucket": "'b' || i", "ordinal": "0", "kind": "'task'", "key": "'-'", "task": "'t' || i", "model": "'m'",
            "split": "'train'", "state": "'trained'", "n": str(GROUP), "created": "0", "completed": "i", "ready_at": "i", "attempts": "0", "parked": "FALSE", "retry_at": "0",
        }  # fmt: skip
        tx.run(f"INSERT INTO t_groups SELECT {_columns(GroupRow._fields, group)} FROM n WHERE i < {episodes // GROUP}")
        for d, day in enumerate(days):
            call = {
                "id": "'c' || lpad(i::VARCHAR, 12, '0') || k", "eid": EID, "number": "k", "ts": "began + k", "seconds": "0.5", "dialect": "'chat'",
                "model": "'m'", "trained": "'m'", "adapter": "'m'", "status": "200", "outcome": "'ok'", "trainable": "TRUE", "sampling": "'{}'",
                "temperature": "1.0", "keep_messages": "0", "keep_tokens": "0", "messages": "'[\"hello\"]'", "reply": "'[\"yes\"]'",
                "finish": "'[\"stop\"]'", "prompt_tokens": "2", "completion_tokens": "2", "prompt_ids": BLOB, "completion_ids": BLOB,
                "lengths": "'\\x02\\x00\\x00\\x00\\x02\\x00\\x00\\x00'::BLOB", "logprobs": BLOB, "body_hash": "''", "attempt": "0", "extra": "'{}'",
            }  # fmt: skip
            begin = NOW - 86_400 * d - (NOW % 86_400)
            tx.run(
                f"""INSERT INTO {schema.table_of(day)} SELECT {_columns(CallRow._fields, call)} FROM n, range({CALLS}) c(k)
                WHERE began + k >= {begin} AND began + k < {begin + 86_400}"""
            )
        tx.run("DROP TABLE n")
    db.settle()


class Grown:
    """A control plane over a store that has grown, asked as the data plane asks it."""

    def __init__(self, episodes: int, folder: Path, engine: LoraEngine) -> None:
        self.episodes = episodes
        config = make_config(folder, engine, store={"memory_limit": "4GB"})
        config.engine.health_interval = 5.0
        config.root.mkdir(parents=True)
        store = open_store(config.store_url, Rules(), memory_limit="4GB")
        fill(store, episodes)
        store.close()
        self.plane = Plane(config, engine)
        self.names = count()

    async def route(self, method: str, path: str, body: object = None) -> None:
        answer = await self.plane.client.request(method, path, json=body, headers=self.plane.as_())
        await answer.read()
        assert answer.status < 300, (path, answer.status)

    async def timed(self, method: str, path: str, body: object = None, times: int = 9) -> float:
        """Median milliseconds of a route."""
        found = []
        for n in range(times + 1):
            start = time.perf_counter()
            await self.route(method, path, body)
            found.append(1000 * (time.perf_counter() - start))
        return round(statistics.median(found[1:]), 2)

    async def routes(self) -> dict[str, float]:
        one = name_of(self.episodes // 2)
        lease = {"worker": "j", "names": ["reward"]}
        return {
            "status": await self.timed("GET", f"{API}/status"),
            "page": await self.timed("GET", f"{API}/episodes"),
            "episode": await self.timed("GET", f"{API}/episodes/{one}"),
            "reward": await self.timed("POST", f"{API}/episodes/{one}/rewards", {"value": 0.5}),
            "lease": await self.timed("POST", f"{API}/groups/lease", lease),
            "metrics": await self.timed("GET", "/internal/metrics"),
        }

    async def first_calls(self, runs: int) -> list[float]:
        """Milliseconds until each of so many new runs, begun at once, has its pin."""

        async def one() -> float:
            start = time.perf_counter()
            body = {"key": "-", "episode": f"new{next(self.names)}", "model": "tiny"}
            await self.route("POST", "/internal/pin", body)
            return 1000 * (time.perf_counter() - start)

        return list(await asyncio.gather(*(one() for _ in range(runs))))

    async def pins(self) -> float:
        """The 99th percentile of the first calls of 128 new runs at once: median of five times."""
        await self.first_calls(RUNS)
        found = [statistics.quantiles(await self.first_calls(RUNS), n=100)[98] for _ in range(5)]
        return round(statistics.median(found), 1)

    async def forgetting(self) -> dict[str, float]:
        """First calls of 16 new runs at once, before an episode is forgotten and until no file holds it."""
        before = [await self.first_calls(16) for _ in range(40)]
        await self.route("DELETE", f"{API}/episodes/{name_of(3)}")
        start, meanwhile = time.perf_counter(), []
        while self.plane.deps.forgetter.progress().episodes:
            meanwhile.append(await self.first_calls(16))
            await asyncio.sleep(0.05)
        before_ms, after_ms = (statistics.median(x for part in found for x in part) for found in (before, meanwhile))
        worst = max(x for part in meanwhile for x in part)
        seconds = time.perf_counter() - start
        return {"stall": round(after_ms / before_ms, 2), "worst_ms": round(worst, 1), "seconds": round(seconds, 1)}

    async def idle(self, seconds: float = 20.0) -> float:
        """Share of a core that the control plane takes while nobody asks it anything."""
        await asyncio.sleep(2.0)
        before = time.process_time()
        await asyncio.sleep(seconds)
        return round((time.process_time() - before) / seconds, 4)


async def measure(episodes: int) -> dict[str, object]:
    engine = await LoraEngine().start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            grown = Grown(episodes, Path(folder), engine)
            await grown.plane.start()
            try:
                await grown.first_calls(1)
                routes, pins = await grown.routes(), await grown.pins()
                idle = await grown.idle()
                return {"routes": routes, "pin_p99_ms": pins, "idle_cpu": idle, "forget": await grown.forgetting()}
            finally:
                await grown.plane.stop()
    finally:
        await engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=1_000_000)
    args = parser.parse_args()
    small, large = (asyncio.run(measure(n)) for n in (args.small, args.large))
    ratios = {name: round(large["routes"][name] / max(ms, 0.5), 1) for name, ms in small["routes"].items()}
    for name, ratio in ratios.items():
        print(f"{name:12} {small['routes'][name]:9.2f} ms {large['routes'][name]:9.2f} ms  x{ratio}")
    worst = max(ratios, key=lambda name: ratios[name])
    found = {
        "episodes": [args.small, args.large],
        "pin_p99_ms": large["pin_p99_ms"],
        "pin_growth": round(large["pin_p99_ms"] / small["pin_p99_ms"], 2),
        "route_growth_worst": ratios[worst],
        "worst": worst,
        "forget_stall": large["forget"]["stall"],
        "forget_worst_ms": large["forget"]["worst_ms"],
        "forget_seconds": large["forget"]["seconds"],
        "idle_cpu": large["idle_cpu"],
        "small": small,
        "large": large,
    }
    found |= long_runs.long_run(2_000) | long_runs.ingest(150) | long_runs.exports((args.small, args.large))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
