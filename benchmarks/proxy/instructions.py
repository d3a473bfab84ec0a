"""What a call costs a worker where no neighbour can change it: instructions in user mode (valgrind's callgrind) and system calls (strace).

    python -m benchmarks.proxy.instructions [--only 1k_c1 ...] [--cache] [--profile FOLDER] [--no-strace]

One compiled worker with keys, tags, a model map and metrics, which records every call, in front of the mock of ``bench.py``. A case is a body and a
number of connections. What the worker does by itself is measured before and after, while nobody calls, and taken off. A stream's figure is one of its events.
The last line is one JSON object: ``instructions``, ``system_calls`` and, with ``--cache``, simulated ``cache_misses`` of each case.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path

from benchmarks.harness import ask, compiled_c, free_port, report, started, wait_for, wait_port
from benchmarks.proxy.bench import bodies, compile_proxy
from benchmarks.proxy.interpreter import Interpreter, chosen
from benchmarks.proxy.targets import HERE, OTHER_CORE, Target, start_slipstream

CASES = {
    "1k_c1": ("1k", 1),
    "1k_c32": ("1k", 32),
    "30k_c1": ("30k", 1),
    "30k_c32": ("30k", 32),
    "stream_c4": ("stream", 4),
}
"""Name → body, connections."""
TOKENS, GAP_MS = 32, 25
"""Of a stream: events, and milliseconds between two. The worker reads each by itself, though valgrind makes it fifty times slower."""
WARM_S, LOAD_S, IDLE_S = 2.0, 8.0, 3.0
MISSES = ("I1mr", "D1mr", "D1mw", "ILmr", "DLmr", "DLmw")
"""callgrind's names of first-level and last-level misses: instructions, reads, writes."""


@dataclass
class Loaded:
    """Calls (or events of streams) that were answered, and the seconds it took."""

    count: int
    seconds: float


class Load:
    def __init__(self, program: Path, target: Target, bodies: dict[str, Path]) -> None:
        self.program, self.target, self.bodies = program, target, bodies

    def run(self, body: str, connections: int, seconds: float) -> Loaded:
        command = [self.program, self.target.port, connections, seconds, self.bodies[body], self.target.key]
        done = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        if found["bad"] or found["reconnected"]:
            raise SystemExit(f"{found['bad']} answers were not 200, {found['reconnected']} connections broke")
        return Loaded(found["events"] if body == "stream" else found["answered"], found["seconds"])


class Callgrind:
    """A worker that runs in it. Between ``zero`` and ``counts`` all events are counted."""

    def __init__(self, folder: Path, *, cache: bool) -> None:
        self.out = folder / "callgrind.out"
        self.command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={self.out}"]
        self.command += ["--cache-sim=yes"] if cache else []
        self.pid = 0
        self._dumps = 0

    def on(self) -> None:
        self._tell("--instr=on")

    def zero(self) -> None:
        self._tell("--zero")

    def counts(self, kept: Path | None = None) -> dict[str, int]:
        """By callgrind's name of the event. ``kept``: where callgrind's own file goes."""
        self._dumps += 1
        self._tell("--dump")
        path = self.out.with_name(f"{self.out.name}.{self._dumps}")
        wait_for(lambda: path.exists() and "\ntotals: " in path.read_text(), 60, 0.1, "callgrind writes nothing")
        text = path.read_text()
        names, totals = (
            re.findall(rf"^{what}: (.*)$", text, re.MULTILINE)[-1].split() for what in ("events", "totals")
        )
        if kept is not None:
            shutil.copy(path, kept)
        return dict(zip(names, map(int, totals), strict=False))

    def idle(self) -> dict[str, float]:
        """Events of a second in which nobody calls."""
        self.zero()
        time.sleep(IDLE_S)
        return {name: count / IDLE_S for name, count in self.counts().items()}

    def _tell(self, order: str) -> None:
        subprocess.run(["callgrind_control", order, str(self.pid)], check=True, capture_output=True, timeout=120)


def instructions(
    folder: Path,
    python: Interpreter,
    cases: Sequence[str],
    *,
    cache: bool = False,
    profile: Path | None = None,
    windows: int = 1,
) -> dict[str, dict[str, float]]:
    """Events of one call of each case: ``Ir``, and the misses with ``cache``. Of several windows the least counts: what
    else runs on the machine only adds.
    """
    found: dict[str, dict[str, float]] = {}
    with contextlib.ExitStack() as stack:
        grind = Callgrind(folder, cache=cache)
        load = start(stack, folder, python, grind.command)
        grind.pid = load.target.pid
        load.run("1k", 8, WARM_S)
        grind.on()
        for case in cases:
            body, connections = CASES[case]
            load.run(body, connections, WARM_S)
            load.target.collect()
            before = grind.idle()
            for _ in range(windows):
                grind.zero()
                loaded = load.run(body, connections, LOAD_S)
                spent = grind.counts(profile / f"{case}.callgrind" if profile else None)
                after = grind.idle()
                own = {name: (before[name] + after[name]) / 2 * loaded.seconds for name in spent}
                each = {name: (spent[name] - own[name]) / loaded.count for name in spent}
                said = f"{case}: {loaded.count} in {loaded.seconds:.1f} s, {each['Ir']:.0f} instructions"
                print(said, file=sys.stderr)
                found[case] = min(found.get(case, each), each, key=itemgetter("Ir"))
                before = after
    return found


def system_calls(folder: Path, python: Interpreter, cases: Sequence[str]) -> dict[str, dict[str, float]]:
    """Of one call of each case, by name, without those that fewer than one of a hundred calls makes."""
    found = {}
    with contextlib.ExitStack() as stack:
        load = start(stack, folder, python)
        for case in cases:
            body, connections = CASES[case]
            load.run(body, connections, 0.5)
            out = folder / f"{case}.strace"
            tracer = subprocess.Popen(
                ["strace", "-f", "-c", "-o", out, "-p", str(load.target.pid)], stderr=subprocess.DEVNULL
            )
            try:
                time.sleep(0.5)
                loaded = load.run(body, connections, LOAD_S / 2)
            finally:
                tracer.send_signal(signal.SIGINT)
                tracer.wait(30)
            rows = re.findall(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ +)?(\w+)$", out.read_text(), re.MULTILINE)
            each = {name: int(count) / loaded.count for count, name in rows if name != "total"}
            found[case] = {name: round(value, 3) for name, value in each.items() if value >= 0.01}
    return found


def builds(python: Interpreter) -> dict[str, str]:
    """Of what a worker is made of: instructions can be compared where they are the same."""
    own = subprocess.run(
        [python.path, "-c", "import sys; print(sys.version)"], check=True, capture_output=True, text=True
    )
    cc = subprocess.run(["cc", "-dumpfullversion"], check=True, capture_output=True, text=True)
    found = {name: version(name) for name in ("crc32c", "mypy", "orjson", "uvloop")}
    return {"python": own.stdout.strip(), "cc": cc.stdout.strip(), "machine": platform.machine(), **found}


def start(stack: contextlib.ExitStack, folder: Path, python: Interpreter, under: Sequence[object] = ()) -> Load:
    """Mock and worker, and what loads them."""
    own = folder / ("under" if under else "plain")
    own.mkdir()
    load, mock, port = compiled_c(HERE / "load.c", own), compiled_c(HERE / "mock.c", own), free_port()
    started(stack, [mock, port, TOKENS, GAP_MS], own / "mock.log", core=OTHER_CORE)
    wait_port(port)
    target = start_slipstream(stack, own, f"http://127.0.0.1:{port}", "process", interpreter=python, under=under)
    wait_for(lambda: ask("GET", f"http://127.0.0.1:{target.port}/healthz", timeout=60), 300, 1.0, "no worker")
    return Load(load, target, bodies(own))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--python", type=Path, help="the worker's interpreter (default: the fastest)")
    parser.add_argument("--cache", action="store_true", help="simulate caches, too; takes twice as long")
    parser.add_argument("--profile", type=Path, help="folder for callgrind's files, for callgrind_annotate")
    parser.add_argument("--strace", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    python = chosen(options.python)
    compile_proxy(python)
    if options.profile:
        options.profile.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        found = instructions(Path(name), python, options.only, cache=options.cache, profile=options.profile)
        calls = system_calls(Path(name), python, options.only) if options.strace else {}
    result: dict[str, object] = {"instructions": {case: round(each["Ir"]) for case, each in found.items()}}
    if options.cache:
        result["cache_misses"] = {case: {n: round(each[n], 1) for n in MISSES} for case, each in found.items()}
    result["system_calls"] = {case: {"all": round(sum(each.values()), 2), **each} for case, each in calls.items()}
    report({**result, "builds": builds(python)}, options.out)


if __name__ == "__main__":
    main()
