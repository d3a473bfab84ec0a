"""What many tenants cost while nobody calls: memory, seconds until all are there, CPU.

    python -m benchmarks.tenants.many [--tenants 64] [--out FILE]

One proxy with one worker in front of a fake engine. Memory is the sum of all its processes' proportional share (PSS). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from pathlib import Path

from benchmarks.harness import report, wait_for
from tests.support.fake_engine import LoraEngine, beside
from tests.support.running import run_proxy

IDLE_S = 10.0


def descendants(pid: int) -> list[int]:
    found = [int(c) for path in Path(f"/proc/{pid}/task").glob("*/children") for c in path.read_text().split()]
    return [*found, *(deeper for child in found for deeper in descendants(child))]


def pss_mib(pid: int) -> float:
    found = re.search(r"^Pss: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def cpu_s(pids: list[int]) -> float:
    tasks = (task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def measured(count: int) -> dict[str, float]:
    engine = LoraEngine()
    engine.models = {"inbox"}
    with tempfile.TemporaryDirectory() as folder, beside(engine):
        began = time.monotonic()
        tenants: dict[str, dict[str, str]] = {f"t{n}": {} for n in range(count)}
        with run_proxy(Path(folder), engine.url, proxy={"port": 0, "workers": 1}, tenants=tenants) as running:
            socks = [running.data_dir / "tenants" / name / "control.sock" for name in tenants]
            first = time.monotonic() - began
            wait_for(lambda: all(sock.exists() for sock in socks), 300, 0.2, "all control planes are there")
            ready = time.monotonic() - began
            time.sleep(IDLE_S)
            pids = [running.process.pid, *descendants(running.process.pid)]
            forked = [pid for pid in pids if b"control.run.tenants" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            spent = cpu_s(pids)
            time.sleep(IDLE_S)
            cores = (cpu_s(pids) - spent) / IDLE_S
            each = [pss_mib(pid) for pid in forked]
            found = {
                "ready_s": first,
                "all_there_s": ready,
                "processes": len(pids),
                "total_mib": sum(map(pss_mib, pids)),
                "tenant_mib": sum(each) / len(each),
                "idle_cores": cores,
                "threads_before_fork": len(list(Path(f"/proc/{min(forked)}/task").iterdir())),
            }
            ending = time.monotonic()
        return {**found, "stopped_s": time.monotonic() - ending}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenants", type=int, default=64)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    report({"tenants": args.tenants, **{name: round(x, 2) for name, x in measured(args.tenants).items()}}, args.out)


if __name__ == "__main__":
    main()
