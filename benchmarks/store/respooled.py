"""CPU of the control plane for a call, from its record in the spool to the store's table: a recorded spool is read into fresh stores, trees by turns.

    python -m benchmarks.store.respooled [--rounds 1024 128 40] [--turns 3] [--stores duckdb postgres] [--old TREE] [--out FILE]

A real proxy records the spool: four calls of 64 sampled tokens a run over a growing prompt, a tag, and a reward (``pace``). Each reading is a process of its
own, which ingests in rounds of so many records, as a control plane does at that many calls in half a second; the first rounds are not counted.
``ms``: milliseconds of CPU a call, the least of all turns; ``server_ms``: of PostgreSQL's own processes. ``--old``: another checkout, whose figures and ratio
stand beside.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.harness import ROOT, child_env, cpu_seconds, in_turns, ratio, report, say
from benchmarks.store.pace import agents, engine, wait_stored
from tests.support.postgres import postgres_server
from tests.support.running import run_proxy

RECORDED_S = 10.0
"""Seconds for which agents call as fast as they are answered."""
WARM_RECORDS = 1_500
VOCABULARY = 32_000


def record(folder: Path, spool: Path) -> Path:
    """→ ``spool``, a folder with what agents' calls left."""
    with engine() as up, run_proxy(folder, up) as running:
        asyncio.run(agents(running.url, 0, RECORDED_S, "r"))
        wait_stored(running)
        shutil.copytree(running.data_dir / "spool", spool)
    return spool


def read(spool: Path, url: str, size: int, server: int | None) -> dict[str, float]:
    """Ingest all of ``spool`` in rounds of ``size`` records."""
    from slipstream_proxy.control.run.worker import YOUNG_OBJECTS
    from slipstream_proxy.control.storage.ingester import Ingester
    from slipstream_proxy.process.garbage import keep_started
    from slipstream_proxy.store import open_store
    from slipstream_proxy.store.values import Rules

    def stored() -> int:
        return int(store.sql("SELECT count(*) FROM calls", 1, 10).rows[0][0])

    async def ingest() -> dict[str, float]:
        ingester = Ingester(spool, store, vocabulary=VOCABULARY)
        await ingester.load_positions()
        while ingester.stats.records < WARM_RECORDS:
            ingester._batch = size
            if not await ingester.round():
                raise SystemExit(f"{spool} holds fewer than {WARM_RECORDS} records")
        before, cpu, served = stored(), time.process_time(), cpu_seconds(server) if server else 0.0
        rounds, ingester._batch = 0, size
        while await ingester.round():
            rounds, ingester._batch = rounds + 1, size
        spent, served = time.process_time() - cpu, cpu_seconds(server) - served if server else 0.0
        calls = stored() - before
        if ingester.stats.unreadable or ingester.stats.skipped:
            raise SystemExit("records were left out")
        made = {"ms": 1000 * spent / calls, "calls": calls, "rounds": rounds}
        return made | ({"server_ms": 1000 * served / calls} if server else {})

    store = open_store(url, Rules(group_size=8))
    keep_started(YOUNG_OBJECTS)  # as the control plane does
    with contextlib.closing(store):
        return asyncio.run(ingest())


def reading(tree: Path, spool: Path, kind: str, size: int) -> dict[str, float]:
    """The same by a process of this tree's code."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url, server = f"duckdb:///{folder / 'store.duckdb'}", 0
        if kind == "postgres":
            made = stack.enter_context(postgres_server())
            url, server = made.url, made.pid
        parts = ("", "sdk", "proxy", "judge", "trainer", "engine")
        env = {**child_env(), "PYTHONPATH": os.pathsep.join(str(tree / part) for part in parts)}
        argv = [sys.executable, __file__, "--read", str(spool), url, str(size), str(server)]
        done = subprocess.run(argv, env=env, cwd=tree, check=True, stdout=subprocess.PIPE)
        found: dict[str, float] = json.loads(done.stdout)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, nargs="*", default=[1024, 128, 40])
    parser.add_argument("--stores", nargs="*", default=["duckdb", "postgres"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--old", type=Path)
    parser.add_argument("--spool", type=Path, help="one that was recorded before; else it is kept there")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        spool, url, size, server = options.read
        print(json.dumps(read(Path(spool), url, int(size), int(server) or None)))
        return
    trees = {**({"old": options.old.resolve()} if options.old else {}), "now": ROOT}
    found: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as name:
        spool = options.spool or Path(name) / "spool"
        if not spool.exists():
            record(Path(name), spool)
        for kind in options.stores:
            for size in options.rounds:
                sides = {side: partial(reading, tree, spool, kind, size) for side, tree in trees.items()}
                turns = in_turns(options.turns, sides)
                made: dict[str, object] = {}
                for side, measured in turns.items():
                    made[side] = {k: round(min(m[k] for m in measured), 3) for k in measured[0]}
                if options.old:
                    made["ratio"] = ratio(*([m["ms"] for m in turns[side]] for side in ("now", "old")))
                found.setdefault(kind, {})[str(size)] = made
                say(f"{kind}, rounds of {size}: {json.dumps(made)}")
    report(found, options.out)


if __name__ == "__main__":
    main()
