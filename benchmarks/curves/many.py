"""Many curves at once on one machine with GPUs: each run is a whole stack of its own, with its share of a GPU and its own cores.

    python benchmarks/curves/many.py --jobs 6 [--gpus 1] [--limit 1500] [--only NAME ...] [--by reward|ruler] [--seeds 3] -- --minutes 7

What stands behind ``--`` goes to curves.py. A run that ended is kept at once (--into), so that nothing is lost with the machine. With
``--limit`` no run begins that might not end in time. The last line is one JSON object: how many runs were kept, and which were not.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("curves.py")
TASKS = ("tictactoe", "2048", "clue", "retail", "mail", "words")
BY = ("reward", "ruler")
MEMORY = 0.6
"""Of a GPU, for the engines of all its stacks together. The trainers need the rest."""
SHARED = (
    "engine.api_servers=1",
    'engine.args=["--enforce-eager", "--kv-cache-memory-bytes", "2000000000", "--max-num-seqs", "64"]',
)
"""What lets engines start beside each other: with a given size of the KV cache, none measures what memory is free."""
STAGGER = 5.0
"""Seconds between two starts."""


@dataclass(frozen=True)
class Planned:
    task: str
    by: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.task}-{self.by}-{self.seed}"


@dataclass(frozen=True)
class Slot:
    """Where one run at a time runs. ``gpu``: None where the machine has none."""

    gpu: int | None
    cores: frozenset[int]
    memory: float


def slots(jobs: int, gpus: int, cores: Sequence[int]) -> list[Slot]:
    """Places for so many runs, alike on each GPU. Cores are divided among them; with fewer cores than runs all have all."""
    each = len(cores) // jobs
    parts = [frozenset(cores[n * each : (n + 1) * each]) if each else frozenset(cores) for n in range(jobs)]
    on_one = -(-jobs // gpus) if gpus else 1
    return [Slot(n % gpus if gpus else None, part, round(MEMORY / on_one, 3)) for n, part in enumerate(parts)]


def command(run: Planned, slot: Slot, folder: Path, rest: Sequence[str]) -> list[str]:
    words = [sys.executable, str(SCRIPT), "--only", run.task, "--by", run.by, "--seed", str(run.seed)]
    shared = () if slot.gpu is None else (f"engine.gpu_memory={slot.memory}", *SHARED)
    return [*words, "--into", str(folder), *(part for setting in shared for part in ("--set", setting)), *rest]


def begin(run: Planned, slot: Slot, into: Path, rest: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a run in its slot; what it says goes to a file of its name."""
    gpu = {} if slot.gpu is None else {"CUDA_VISIBLE_DEVICES": str(slot.gpu)}
    env = {**os.environ, "OMP_NUM_THREADS": "1", **gpu}
    with (into / f"{run.name}.log").open("wb") as log:
        process = subprocess.Popen(
            command(run, slot, into / run.name, rest), stdout=log, stderr=log, env=env, start_new_session=True
        )
    os.sched_setaffinity(process.pid, slot.cores)
    return process


def keep(run: Planned, into: Path) -> bool:
    """Put the run's file where curves.py looks for it (``--summary --into``). False: there is none."""
    made = next((into / run.name / "curves").glob("*.json"), None)  # a long run has another name
    if made is None:
        return False
    (into / "curves").mkdir(exist_ok=True)
    shutil.move(made, into / "curves" / made.name)
    shutil.rmtree(into / run.name)
    return True


def run_all(
    planned: Sequence[Planned],
    places: Sequence[Slot],
    start: Callable[[Planned, Slot], subprocess.Popen[bytes]],
    ended: Callable[[Planned], None],
    limit: float,
    *,
    stagger: float = STAGGER,
) -> None:
    """Run them all, one at a time in each place. After ``limit`` seconds those that still run are stopped."""
    until, waiting, longest = time.monotonic() + limit, list(planned), 0.0
    running: dict[Slot, tuple[Planned, subprocess.Popen[bytes], float]] = {}
    try:
        while (waiting or running) and time.monotonic() < until:
            for place in places:
                if place in running and running[place][1].poll() is not None:
                    run, _, began = running.pop(place)
                    longest = max(longest, time.monotonic() - began)
                    ended(run)
                if place not in running and waiting and time.monotonic() + longest < until:
                    run = waiting.pop(0)
                    running[place] = run, start(run, place), time.monotonic()
                    time.sleep(stagger)
            if not running:
                break
            time.sleep(0.2)
    finally:
        for _, process, _ in running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)  # with the stack that it started
        for run, process, _ in running.values():
            process.wait(30)
            ended(run)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, required=True, help="runs at once")
    parser.add_argument("--gpus", type=int, default=1, help="0: engines compute on the CPU")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which all is stopped")
    parser.add_argument("--only", action="append", choices=TASKS, metavar="NAME")
    parser.add_argument("--by", choices=BY)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--into", type=Path, default=Path("curves"))
    parser.add_argument("rest", nargs="*", help="for curves.py, behind --")
    args = parser.parse_args()
    into = args.into.resolve()
    into.mkdir(parents=True, exist_ok=True)
    found = itertools.product(range(args.seeds), (args.by,) if args.by else BY, args.only or TASKS)
    planned = [Planned(task, by, seed) for seed, by, task in found]
    places = slots(args.jobs, args.gpus, sorted(os.sched_getaffinity(0)))
    kept: list[str] = []

    def ended(run: Planned) -> None:
        good = keep(run, into)
        kept.extend([run.name] * good)
        print(f"{run.name}: {'kept' if good else 'failed, see its log'}", file=sys.stderr, flush=True)

    run_all(planned, places, lambda run, place: begin(run, place, into, args.rest), ended, args.limit)
    lacking = [run.name for run in planned if run.name not in kept]
    print(json.dumps({"kept": len(kept), "lacking": lacking}))
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
