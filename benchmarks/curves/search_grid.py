"""Runs many command lines of search.py at once, and sums them up."""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["lines_of", "run_all", "table"]

SCRIPT = Path(__file__).with_name("search.py")
SPARE = 10.0
"""Seconds between the deadline of the runs and the end."""


def lines_of(text: str, only: Sequence[str] = ()) -> list[str]:
    """Its command lines: `tasks` and `seeds` may be lists (`words,mail 0,1`), and then a line is several.

    A line is `NAME: TASK,TASK SEED,SEED options…`; NAME says in the summary what was tried. `#` begins a comment.
    """
    found = []
    for line in text.splitlines():
        name, _, rest = line.partition("#")[0].partition(":")
        if not rest.strip():
            continue
        tasks, seeds, *options = shlex.split(rest)
        for seed in seeds.split(","):
            for task in tasks.split(","):
                found.append(shlex.join([name.strip(), task, "--seed", seed, *options]))
    return [line for line in found if not only or any(text in line for text in only)]


def begin(line: str, out: Path, seconds: float) -> subprocess.Popen[bytes]:
    """Start the run of a line. What it prints goes into files of its name."""
    name, *words = shlex.split(line)
    argv = [sys.executable, str(SCRIPT), *words, "--deadline", str(time.time() + seconds - SPARE)]
    stem = out / f"{name}-{words[0]}-{words[2]}"
    with stem.with_suffix(".json").open("wb") as told, stem.with_suffix(".log").open("wb") as log:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        return subprocess.Popen(argv, stdout=told, stderr=log, env=env)


def results(lines: Sequence[str], out: Path) -> Iterator[dict[str, Any]]:
    """What each run found, without its curve; where it found nothing, the end of its log."""
    for line in lines:
        name, task, _, seed, *_ = shlex.split(line)
        stem = out / f"{name}-{task}-{seed}"
        file = stem.with_suffix(".json")
        text = file.read_text().strip() if file.is_file() else ""
        if not text:
            log = stem.with_suffix(".log")
            yield {
                "name": name,
                "task": task,
                "seed": int(seed),
                "failed": log.read_text()[-300:] if log.is_file() else "",
            }
            continue
        found = json.loads(text.splitlines()[-1])
        found.pop("curve")
        yield {"name": name, **found}


def table(found: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Name → of each task the least gain of the last quarter over the seeds, and the mean over the tasks as `all`."""
    gains: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in found:
        if "gain_late" in run:
            gains[run["name"]][run["task"]].append(run["gain_late"])
    summed = {}
    for name, tasks in gains.items():
        least = {task: round(min(values), 3) for task, values in tasks.items()}
        summed[name] = {**least, "all": round(statistics.fmean(least.values()), 3)}
    return summed


def run_all(grid: Path, only: Sequence[str], *, jobs: int, limit: float, out: Path) -> int:
    """Run the lines of a file, `jobs` at once, and print all gains as one JSON line. 1 where a run found nothing.

    Each run is told how long it may take: the runs that wait behind it want their share of the time, too.
    """
    end = time.monotonic() + limit
    lines = lines_of(grid.read_text(), only)
    out.mkdir(parents=True, exist_ok=True)
    rounds = -(-len(lines) // jobs)
    share = limit / max(1, rounds)
    waiting, running = list(lines), []
    try:
        while waiting or running:
            running = [process for process in running if process.poll() is None]
            while waiting and len(running) < jobs:
                running.append(begin(waiting.pop(0), out, min(share, end - time.monotonic())))
            if time.monotonic() > end:
                break
            time.sleep(0.5)
    finally:
        for process in running:
            process.kill()
    found = list(results(lines, out))
    (out / "all.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({"table": table(found), "failed": [run for run in found if "failed" in run]}))
    return 1 if any("failed" in run for run in found) else 0
