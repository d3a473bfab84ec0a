"""How evenly fifty engines are chosen, how many a group of eight runs meets, and what a choice costs.

``python -m benchmarks.proxy.selection > benchmarks/results/selection.json``
"""

from __future__ import annotations

import json
import platform
import time

from tests.support.engine_traffic import ENGINES, Traffic

from slipstream_proxy.data.engines.selection import AbleEngines, EngineSelection

CHOICES = 100_000


def microseconds(*, new: bool) -> float:
    """CPU time of one choice among fifty engines, the best of five rounds."""
    names = [(f"e{n}", f"t{n // 8}") for n in range(CHOICES)]
    selection, able = EngineSelection(), AbleEngines(ENGINES)
    rounds = []
    for _ in range(5):
        began = time.process_time()
        for episode, task in names:
            selection.pick(able, episode, task, "" if new else ENGINES[7])
        rounds.append((time.process_time() - began) / CHOICES * 1e6)
    return round(min(rounds), 2)


def spread(streams: int, *, tasks: bool) -> dict[str, float]:
    found = Traffic(streams, 100_000, ENGINES, tasks=tasks)
    groups = [len(engines) for engines in list(found.near.values())[:1000]]
    near = {"engines_of_a_group_of_eight": round(sum(groups) / len(groups), 2)} if tasks else {}
    return {"fullest_by_mean": round(found.fullest(), 3), "calls_moved": found.moved, **near}


def main() -> None:
    cases = {f"{n} streams{', groups of eight' if t else ''}": (n, t) for n in (400, 2000) for t in (False, True)}
    result = {
        "what": "calls of the fullest of 50 engines by the mean, and the CPU time of one choice (not compiled)",
        "command": "python -m benchmarks.proxy.selection",
        "python": platform.python_version(),
        "traffic": {name: spread(streams, tasks=tasks) for name, (streams, tasks) in cases.items()},
        "microseconds": {"of_a_running_episode": microseconds(new=False), "of_a_new_one": microseconds(new=True)},
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
