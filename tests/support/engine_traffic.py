"""Runs that choose engines as the data plane does, on a clock of their own."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from random import Random

from slipstream_proxy.data.engines.selection import AbleEngines, EngineSelection

ENGINES = [f"http://e{n}:8000" for n in range(50)]


class Traffic:
    """Runs of eight of a task, each of six calls, so many at once."""

    def __init__(
        self, streams: int, calls: int, engines: list[str], *, tasks: bool = True, alone: bool = False
    ) -> None:
        random, selection, able = Random(streams), EngineSelection(), AbleEngines(engines)
        self.calls, self.moved = Counter[str](), 0
        self.near: dict[str, set[str]] = defaultdict(set)
        waiting: list[tuple[float, int, int, str, int]] = []
        for stream in range(streams):
            heapq.heappush(waiting, (random.random(), stream, stream, "", 0))
        runs = streams
        while self.calls.total() < calls:
            at, stream, run, engine, turn = heapq.heappop(waiting)
            if engine and not alone:
                selection.end(engine)
            if turn == 6:
                runs, turn, engine = runs + 1, 0, ""
                run = runs
            task = f"t{run // 8}" if tasks else ""
            first, *_ = selection.pick(able, f"e{run}", task, engine)
            self.moved += bool(engine) and engine != first
            self.near[task].add(first)
            self.calls[first] += 1
            if not alone:
                selection.begin(first)
            heapq.heappush(waiting, (at + random.expovariate(1.0), stream, run, first, turn + 1))

    def fullest(self) -> float:
        return max(self.calls.values()) / (self.calls.total() / len(ENGINES))
