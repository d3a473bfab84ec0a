"""How fast and how small the store is: one JSON line.

``python -m benchmarks.store.bench_store [--url postgresql://…]``. Needs nothing but the proxy's packages; takes about a minute.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import report
from tests.support.store_writes import pin

from slipstream.contract import BatchLeaseIn, RewardIn
from slipstream_proxy.log.records import CallHead, Choice, Mutation, Parsed
from slipstream_proxy.store import open_store
from slipstream_proxy.store.conversation import calls, fingerprint
from slipstream_proxy.store.store import Store
from slipstream_proxy.store.values import Position, RecordedCall, Rules

NOW = 1_800_000_000.0
WORDS = [
    f"{a}{b}{c}"
    for a in ("ka", "le", "mi", "no", "ru")
    for b in ("sta", "pel", "ron", "dim")
    for c in ("", "s", "ing", "ed")
]


def say(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


class Numbers:
    def __init__(self) -> None:
        self.n = 0

    def __call__(self) -> str:
        self.n += 1
        return f"{self.n:026d}"


def episodes(
    count: int, turns: int, ids: Numbers, *, seed: int = 0, words: int = 60, task_of: int = 8
) -> list[list[Any]]:
    """Conversations of ``turns`` calls, each a list of records in order; the last call ends it and a reward follows."""
    rng = random.Random(seed)
    made = []
    for e in range(count):
        messages: list[Any] = [{"role": "system", "content": say(rng, 200)}]
        prompt = [rng.randrange(150_000) for _ in range(300)]
        records: list[Any] = []
        for t in range(turns):
            messages = [*messages, {"role": "user" if t == 0 else "tool", "content": say(rng, words)}]
            prompt = prompt + [rng.randrange(150_000) for _ in range(words)]
            reply = {"role": "assistant", "content": say(rng, words)}
            sampled = [rng.randrange(150_000) for _ in range(words)]
            head = CallHead(
                id=ids(), key="-", episode=f"e{seed}-{e}", task=f"t{seed}-{e // task_of}", split="train", tags={}, model="m", trained="m",
                adapter="m", arm="live", pin="control", dialect="chat", stream=False, at=NOW + e * 0.01 + t, seconds=0.5, first_byte=0.1,
                status=200, outcome="ok", upstream="http://engine", done=t == turns - 1,
            )  # fmt: skip
            choice = Choice(reply, "stop", sampled, [-rng.random() * 3 for _ in sampled])
            records.append(RecordedCall(head, Parsed(messages, [], {"temperature": 1.0}, prompt, [choice], None)))
            messages = [*messages, reply]
            prompt = prompt + sampled
        given = RewardIn(value=rng.random()).model_dump()
        records.append(Mutation(ids(), "reward", NOW, {"key": "-", "episode": f"e{seed}-{e}", "reward": given}))
        made.append(records)
    return made


def interleave(parts: list[list[Any]]) -> list[Any]:
    return [r for turn in range(max(map(len, parts))) for p in parts if turn < len(p) for r in (p[turn],)]


def feed(store: Store, records: list[Any], size: int) -> dict[str, float]:
    """Ingest in transactions of ``size``."""
    wall, cpu = time.perf_counter(), time.process_time()
    for i in range(0, len(records), size):
        store.ingest(records[i : i + size], {"data0": Position(0, i + size)})
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "records": len(records),
        "per_second": round(len(records) / wall),
        "cpu_us": round(1e6 * cpu / len(records)),
    }


def no_cut(prompt: fingerprint.Prompt, _known: object) -> fingerprint.Cut:
    return fingerprint.Cut(None, 0, 0, prompt.texts, prompt.ids, prompt.tools)


def sizes(folder: Path, *, whole: bool) -> dict[str, float]:
    """File and log of 200 episodes × 20 turns; ``whole``: every call with all of its history."""
    cut = fingerprint.cut
    if whole:
        calls.cut = no_cut
    try:
        store = open_store(f"duckdb:///{folder / f'size{whole}.duckdb'}", Rules())
        records = interleave(episodes(200, 20, Numbers(), seed=7))
        logged, wal = 0, folder / f"size{whole}.duckdb.wal"
        for i in range(0, len(records), 256):
            before = wal.stat().st_size if wal.exists() else 0
            store.ingest(records[i : i + 256], {"data0": Position(0, i)})
            after = wal.stat().st_size if wal.exists() else 0
            logged += after - before if after >= before else after
        store.snapshot()
        store.close()
    finally:
        calls.cut = cut
    return {
        "file_mb": round((folder / f"size{whole}.duckdb").stat().st_size / 2**20, 2),
        "wal_mb": round(logged / 2**20, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", help="another store than a fresh DuckDB file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = args.url or f"duckdb:///{folder / 'bench.duckdb'}"
        store = open_store(url, Rules(group_size=8))
        ids, found = Numbers(), {}
        found["small_512"] = feed(store, interleave(episodes(1000, 4, ids, seed=1, words=10)), 512)
        found["small_20"] = feed(store, interleave(episodes(250, 4, ids, seed=2, words=10)), 20)
        found["long_256"] = feed(store, interleave(episodes(100, 20, ids, seed=3)), 256)
        wall = time.perf_counter()
        wanted = BatchLeaseIn(worker="w", model="m", max_groups=125, min_groups=1)
        got = store.batches.lease(wanted, {}, 0, NOW + 1000)
        assert got is not None
        lease = time.perf_counter() - wall
        found["lease"] = {
            "episodes": len(set(got.table["episode"].to_pylist())),
            "rows": got.table.num_rows,
            "seconds": round(lease, 3),
        }
        wall = time.perf_counter()
        for i in range(100):
            pin(store, "-", f"p{i}", "m", "m", "live", NOW)
        found["pin_ms"] = round(10 * (time.perf_counter() - wall), 2)
        wall = time.perf_counter()
        store.statistics.counts(NOW)
        found["counts_ms"] = round(1000 * (time.perf_counter() - wall), 1)
        store.close()
        if not args.url:
            small, large = sizes(folder, whole=False), sizes(folder, whole=True)
            found["compact"], found["whole"] = small, large
            found["wal_ratio"], found["file_ratio"] = (
                round(large["wal_mb"] / small["wal_mb"], 2),
                round(large["file_mb"] / small["file_mb"], 2),
            )
    report(found)


if __name__ == "__main__":
    main()
