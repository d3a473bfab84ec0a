"""How long a user waits for ``slipstream export`` and ``slipstream import`` of many episodes: one JSON line, in seconds.

``python -m benchmarks.store.bench_files [--episodes 10000]``. The commands and the two proxies run as processes of their
own, over HTTP, as a user runs them. ``export_*`` writes all episodes of a store in that format; ``import_jsonl`` puts
that export into an empty store; ``import_log`` reads as many plain conversations, and ``import_art`` as many of ART's
trajectories. Each ends when every episode is there: the last import is counted.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.harness import report, slipstream
from benchmarks.store.bench_store import Numbers, episodes, interleave, say
from tests.support.running import Running, run_proxy
from tests.support.server import serve

from slipstream.client import Client
from slipstream_proxy.store import open_store
from slipstream_proxy.store.values import Position, Rules

TURNS = 3
FORMATS = ("jsonl", "parquet", "sft", "dpo")


def fill(file: Path, count: int) -> None:
    """Episodes of ``TURNS`` calls with their tokens."""
    file.parent.mkdir(parents=True)
    store = open_store(f"duckdb:///{file}", Rules())
    ids = Numbers()
    for n in range(0, count, 500):
        records = interleave(episodes(min(500, count - n), TURNS, ids, seed=n))
        store.ingest(records, {"data0": Position(0, n + 1)})
    store.close()


def conversations(file: Path, count: int, *, art: bool) -> None:
    rng = random.Random(1)
    with file.open("w") as out:
        for n in range(count):
            messages = [{"role": "system", "content": say(rng, 50)}]
            for _ in range(TURNS):
                messages += [{"role": "user", "content": say(rng, 30)}, {"role": "assistant", "content": say(rng, 30)}]
            run = {"reward": rng.random(), "metadata": {}, "metrics": {}}
            if art:
                row: object = {"trajectories": [{**run, "messages_and_choices": messages, "tools": None, "logs": []}]}
            else:
                row = {"messages": messages, "task": f"t{n // 8}", "reward": run["reward"]}
            out.write(json.dumps(row) + "\n")


def timed(proxy: Running, *command: str) -> float:
    start = time.perf_counter()
    subprocess.run(slipstream(*command, "--url", proxy.url), check=True, stdout=subprocess.DEVNULL)
    return round(time.perf_counter() - start, 1)


def stored(proxy: Running) -> int:
    with Client(proxy.url) as client:
        return sum(client.status().episodes.values())


def imported(folder: Path, name: str, engine: str, file: Path, count: int) -> float:
    """Into a store of its own, until ``status`` counts them all."""
    with run_proxy(folder / name, engine) as proxy:
        start = time.perf_counter()
        timed(proxy, "import", str(file))
        while (there := stored(proxy)) < count:
            assert time.perf_counter() - start < 600, f"{there} of {count} episodes are there"
            time.sleep(0.2)
        return round(time.perf_counter() - start, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    count = parser.parse_args().episodes
    found: dict[str, object] = {"episodes": count, "calls": count * TURNS}
    with tempfile.TemporaryDirectory() as name, serve() as server:
        folder = Path(name)
        server.on("GET", "/health")  # files need no more of an engine
        server.on("GET", "/v1/models", {"data": [{"id": "inbox"}]})
        fill(folder / "full" / "data" / "slipstream.duckdb", count)
        with run_proxy(folder / "full", server.url) as proxy:
            for kind in FORMATS:
                out = folder / f"out.{kind}"
                found[f"export_{kind}"] = timed(proxy, "export", "--format", kind, "--out", str(out))
                found[f"{kind}_mb"] = round(out.stat().st_size / 2**20, 1)
        exported = folder / "out.jsonl"
        assert sum(1 for _ in exported.open("rb")) == count
        found["import_jsonl"] = imported(folder, "moved", server.url, exported, count)
        for kind in ("log", "art"):
            file = folder / f"{kind}.jsonl"
            conversations(file, count, art=kind == "art")
            found[f"import_{kind}"] = imported(folder, kind, server.url, file, count)
    report(found)


if __name__ == "__main__":
    main()
