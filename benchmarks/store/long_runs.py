"""What long runs and many conversations cost: the part of ``bench_growth`` that fills stores by itself.

- ``long_run_mb``: the most megabytes that a run of so many calls is as its page, its batch, its group or its export;
  ``long_run_rss_mb``: the most memory that reading it took.
- ``ingest_growth``: what a call of one of 128 conversations costs at that turn, against one of 8.
"""

from __future__ import annotations

import contextlib
import gc
import io
import multiprocessing
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
from benchmarks.store.filling import started_of

from slipstream.contract import BatchLeaseIn, GroupLeaseIn, RewardIn
from slipstream_export.rows import pieces
from slipstream_proxy.log.records import CallHead, Choice, Mutation, Parsed
from slipstream_proxy.store import open_store
from slipstream_proxy.store.store import Store
from slipstream_proxy.store.values import EpisodeFilter, RecordedCall, Rules

NOW = 1_800_000_000.0
MB = 2**20
WINDOW = 3_000
"""Episodes of an export that are timed together."""
EXPORT_ROUNDS = 2
LAST = 12
"""Turns whose ingest is timed."""
READS = ("page", "batch", "group", "export")


class Agent:
    """A conversation that grows by a question and an answer with every call."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: list[object] = [{"role": "system", "content": "You are an agent. " * 20}]
        self.ids = list(range(100))
        self.turn = 0

    def call(self) -> RecordedCall:
        self.turn += 1
        self.messages = [*self.messages, {"role": "user", "content": f"{self.name} asks {self.turn} " + "word " * 30}]
        self.ids = [*self.ids, *range(self.turn, self.turn + 50)]
        said = {"role": "assistant", "content": f"answer {self.turn} " + "word " * 20}
        sampled = list(range(30))
        head = CallHead(
            id=f"c{self.turn:06d}{self.name}", key="-", episode=self.name, task="t", split="train", tags={}, model="m", trained="m",
            adapter="m", arm="live", pin="control", dialect="chat", stream=False, at=NOW + self.turn, seconds=0.5, first_byte=0.1,
            status=200, outcome="ok", upstream="http://engine", grouped=True,
        )  # fmt: skip
        parsed = Parsed(
            self.messages,
            [],
            {"temperature": 1.0},
            self.ids,
            [Choice(said, "stop", sampled, [-0.123] * 30)],
            None,
            None,
        )
        self.messages, self.ids = [*self.messages, said], [*self.ids, *sampled]
        return RecordedCall(head, parsed)


@contextlib.contextmanager
def room(postgres: str | None) -> Iterator[str]:
    """Where an empty store may be made: a folder, or the URL of a schema of that server's own."""
    if postgres is None:
        with tempfile.TemporaryDirectory() as folder:
            yield folder
        return
    name = f"room{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres, autocommit=True) as con:
        con.execute(f"CREATE SCHEMA {name}".encode())
        yield f"{postgres}{'&' if '?' in postgres else '?'}options=-csearch_path%3D{name}"
        con.execute(f"DROP SCHEMA {name} CASCADE".encode())


def opened(where: str, **rules: int) -> Store:
    """``where``: of ``room``."""
    url = where if where.startswith("postgresql:") else f"duckdb:///{Path(where) / 'runs.duckdb'}"
    return open_store(url, Rules(**rules), memory_limit="1GB")


def fill_run(where: str, calls: int) -> None:
    store, agent = opened(where, group_size=1), Agent("long")
    for _ in range(0, calls, 100):
        store.ingest([agent.call() for _ in range(min(100, calls - agent.turn))], {})
    data = {"key": "-", "episode": "long", "reward": RewardIn(value=1.0).model_dump(mode="json")}
    store.ingest([Mutation("m1", "reward", NOW, data), Mutation("m2", "done", NOW, data)], {})
    store.close()


def peak() -> float:
    """The most memory that this process has had, in MB."""
    line = next(at for at in Path("/proc/self/status").read_text().splitlines() if at.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def read_run(where: str, what: str, answer: multiprocessing.Queue[tuple[float, float]]) -> None:
    """In a process of its own: megabytes of the reply, and of memory for it."""
    store = opened(where, group_size=1)
    store.episodes.page(EpisodeFilter())
    gc.collect()
    before, size, later = peak(), 0, NOW + 99_999
    if what == "page":
        detail = store.episodes.get("-", "long")
        assert detail is not None
        assert detail.next_call is None
        size = len(detail.model_dump_json())
    elif what == "group":
        lease = store.judging.lease(GroupLeaseIn(worker="j"), later)
        assert lease is not None
        size = len(lease.model_dump_json())
    elif what == "batch":
        batch = store.batches.lease(BatchLeaseIn(worker="t", model="m", min_groups=1), {}, 0, later)
        assert batch is not None
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, batch.table.schema) as writer:
            writer.write_table(batch.table)
        size = sink.tell()
    else:
        size = sum(len(part) for part in pieces(store, EpisodeFilter(), "jsonl", lambda _: None))
    answer.put((size / MB, peak() - before))


def long_run(calls: int, postgres: str | None = None) -> dict[str, float]:
    spawn = multiprocessing.get_context("spawn")
    found: dict[str, float] = {}
    with room(postgres) as where:
        fill_run(where, calls)
        for what in READS:
            answer = spawn.Queue()
            process = spawn.Process(target=read_run, args=(where, what, answer))
            process.start()
            size, memory = answer.get(timeout=600)
            process.join()
            found |= {f"{what}_mb": round(size, 2), f"{what}_rss_mb": round(memory, 1)}
    largest = max(found[f"{what}_mb"] for what in READS)
    return {**found, "long_run_mb": largest, "long_run_rss_mb": max(found[f"{what}_rss_mb"] for what in READS)}


class Conversations:
    """So many at once, at a turn. They are asked by turns with others, so that a busy machine is as slow for both."""

    def __init__(self, where: str, count: int, turns: int) -> None:
        self.store = opened(where)
        self.agents = [Agent(f"a{n:04d}") for n in range(count)]
        for _ in range(turns - LAST):
            self.store.ingest([agent.call() for agent in self.agents], {})
        self.spent: list[float] = []
        """Milliseconds of a call, of each batch of eight."""

    def turn(self) -> None:
        for first in range(0, len(self.agents), 8):
            calls = [agent.call() for agent in self.agents[first : first + 8]]
            begun = time.perf_counter()
            self.store.ingest(calls, {})
            self.spent.append(1000 * (time.perf_counter() - begun) / len(calls))


def ingest(turns: int, postgres: str | None = None) -> dict[str, float]:
    with room(postgres) as small, room(postgres) as large:
        few, many = Conversations(small, 8, turns), Conversations(large, 128, turns)
        for _ in range(LAST):
            few.turn()
            many.turn()
        few.store.close()
        many.store.close()
    ms = [statistics.median(one.spent) for one in (few, many)]
    return {"ingest_8_ms": round(ms[0], 2), "ingest_128_ms": round(ms[1], 2), "ingest_growth": round(ms[1] / ms[0], 2)}


def exported(store: Store, until: float | None = None) -> Iterator[bytes]:
    return pieces(store, EpisodeFilter(until=until), "jsonl", lambda _: None)


def export_growth(few: Store, many: Store, episodes: tuple[int, int]) -> dict[str, float]:
    """Microseconds of an episode's export, at the newest, in the middle and at the oldest of two filled stores, which are asked by turns."""
    took: dict[int, list[tuple[float, float]]] = {count: [] for count in episodes}
    for place in range(3 * EXPORT_ROUNDS):
        for store, count in zip((few, many), episodes, strict=True):
            window = min(WINDOW, episodes[0] // 3)
            until = started_of((count, count // 2, window)[place % 3], count)
            lines, wall, work = 0, time.perf_counter(), time.process_time()
            for part in exported(store, until=until):
                lines += part.count(b"\n")
                if lines >= window:
                    break
            spent = time.perf_counter() - wall, time.process_time() - work
            took[count].append((1e6 * spent[0] / lines, 1e6 * spent[1] / lines))
    (wall_few, cpu_few), (wall_many, cpu_many) = (map(statistics.median, zip(*took[n], strict=True)) for n in episodes)
    return {
        "export_us_small": round(wall_few),
        "export_us": round(wall_many),
        "export_growth": round(wall_many / wall_few, 2),
        "export_cpu_us": round(cpu_many),
        "export_cpu_growth": round(cpu_many / cpu_few, 2),
    }
