"""How the store behaves when it has grown: the same questions at few and at many episodes.

``python benchmarks/store/bench_growth.py [--small 10000] [--large 1000000]``. Its stores are made with SQL, in seconds. The
last line is one JSON object: milliseconds of each route at both sizes, and the ratio of the worst.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from hashlib import md5
from pathlib import Path

from slipstream.contract import BatchLeaseIn, GroupLeaseIn, RewardIn
from slipstream_proxy.records import Mutation
from slipstream_proxy.store import open_store, schema
from slipstream_proxy.store.protocol import Store
from slipstream_proxy.store.rows import CallRow, EpisodeRow, GroupRow, RewardRow
from slipstream_proxy.store.values import EpisodeFilter, Position, Rules

NOW = 1_800_000_000.0
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


def timed(what: Callable[[], object], times: int = 9) -> float:
    """Median milliseconds."""
    what()
    found = []
    for _ in range(times):
        start = time.perf_counter()
        what()
        found.append(1000 * (time.perf_counter() - start))
    return round(statistics.median(found), 2)


def measure(episodes: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"duckdb:///{Path(folder) / 'growth.duckdb'}", Rules(), memory_limit="4GB")
        fill(store, episodes)
        names = iter(range(10_000))
        last = name_of(episodes // 2)

        def pin() -> object:
            return store.pins.pin("-", f"new{next(names)}", "m", "m", "live", NOW)

        def reward() -> None:
            n = next(names)
            data = {"key": "-", "episode": last, "reward": RewardIn(value=0.5).model_dump(mode="json")}
            store.ingest([Mutation(f"z{n:06d}", "reward", NOW, data)], {"control": Position(0, n)})

        judge = GroupLeaseIn(worker="j", names=["reward"])
        trainer = BatchLeaseIn(worker="t", model="m")
        found = {
            "sweep": timed(lambda: store.sweep(NOW)),
            "counts": timed(lambda: store.statistics.counts(NOW), 5),
            "page": timed(lambda: store.episodes.page(EpisodeFilter())),
            "episode": timed(lambda: store.episodes.get("-", last)),
            "reward": timed(reward),
            "pin": timed(pin),
            "judge_lease": timed(lambda: store.judging.lease(judge, NOW)),
            "batch_lease": timed(lambda: store.batches.lease(trainer, {}, 0, NOW)),
        }
        store.close()
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=1_000_000)
    args = parser.parse_args()
    small, large = measure(args.small), measure(args.large)
    ratios = {name: round(large[name] / max(small[name], 0.5), 1) for name in small}
    for name, ratio in ratios.items():
        print(f"{name:12} {small[name]:9.2f} ms {large[name]:9.2f} ms  x{ratio}")
    worst = max(ratios, key=lambda name: ratios[name])
    print(json.dumps({"small": small, "large": large, "route_growth_worst": ratios[worst], "worst": worst}))


if __name__ == "__main__":
    main()
