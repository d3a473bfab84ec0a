"""Requests a second, latency and CPU of the proxy beside nginx, LiteLLM's proxy, other peers and no proxy at all, in alternating rounds of one run.

    python -m benchmarks.proxy.bench [--rounds N] [--seconds S] [--no-litellm] [--peers vllm-router ...]

The proxy under test has one core, mock and load generator share another. The proxy has keys, tags, a model map and metrics on and records
every call; between two measurements its finished segments are counted and deleted. The last line is one JSON object with the medians of the rounds' ratios; ``recorded`` must equal ``answered``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import compiled_c, cpu_seconds, free_port, ratio, report, started, wait_port
from benchmarks.proxy.interpreter import Interpreter, chosen
from benchmarks.proxy.targets import (
    HERE,
    OTHER_CORE,
    PEERS,
    Target,
    start_litellm,
    start_nginx,
    start_peer,
    start_slipstream,
)

CASES = [("1k", 1), ("1k", 32), ("1k", 256), ("30k", 1), ("30k", 32), ("30k", 256), ("stream", 32)]
PEER_CASES = [("1k", 32), ("stream", 32)]
OURS, POWER = "slipstream (process)", "slipstream (power)"
Results = dict[tuple[str, str, int], list[dict[str, float]]]


def run(load: Path, target: Target, connections: int, seconds: float, body: Path) -> dict[str, float]:
    before = cpu_seconds(target.pid)
    command = [str(load), str(target.port), str(connections), str(seconds), str(body), target.key]
    out = subprocess.run(
        command, check=True, capture_output=True, text=True, preexec_fn=lambda: os.sched_setaffinity(0, {OTHER_CORE})
    ).stdout
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    spent = cpu_seconds(target.pid) - before
    found["cpu_us"] = spent / max(1, found["answered"]) * 1e6
    if found["events"]:
        found["cpu_us_per_event"] = spent / found["events"] * 1e6
    if found["bad"] or found["reconnected"]:
        raise SystemExit(
            f"{target.name}: {found['bad']} answers were not 200, {found['reconnected']} connections broke"
        )
    target.answered += int(found["answered"])
    target.collect()
    return found


def bodies(folder: Path) -> dict[str, Path]:
    found = {}
    for name, size, more in (("1k", 900, {}), ("30k", 30_000, {}), ("stream", 900, {"stream": True})):
        found[name] = folder / f"body-{name}"
        message = {"role": "user", "content": "x" * size}
        found[name].write_text(json.dumps({"model": "gpt-4o", "messages": [message], "temperature": 1.0, **more}))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--python", type=Path, help="the proxy's interpreter (default: the fastest)")
    parser.add_argument("--litellm", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--peers", nargs="*", default=[], choices=list(PEERS), help="installed at their first use")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        load, mock_binary = compiled_c(HERE / "load.c", folder), compiled_c(HERE / "mock.c", folder)
        mock_port = free_port()
        mock = started(stack, [mock_binary, mock_port, 32, 5], folder / "mock.log", core=OTHER_CORE)
        wait_port(mock_port)
        nginx = start_nginx(stack, folder, mock_port)
        litellm = start_litellm(stack, folder, mock_port) if options.litellm else None
        peers = [*([litellm] if litellm else []), *filter(None, (start_peer(stack, folder, mock_port, n) for n in options.peers))]  # fmt: skip
        python = chosen(options.python)
        compile_proxy(python)
        upstream = f"http://127.0.0.1:{mock_port}"
        ours = [start_slipstream(stack, folder, upstream, d, interpreter=python) for d in ("process", "power")]
        targets = [Target("direct", mock_port, mock.pid), *([nginx] if nginx else []), *ours]
        targets += peers
        body = bodies(folder)
        for target in targets:
            run(load, target, 8, 0.5, body["1k"])
        results: Results = {}
        for number in range(options.rounds):
            for case in CASES:
                for target in targets:
                    if target not in peers or case in PEER_CASES:
                        found = run(load, target, case[1], options.seconds, body[case[0]])
                        results.setdefault((target.name, *case), []).append(found)
            print(f"round {number + 1} of {options.rounds} done", file=sys.stderr)
        shown(results, targets)
        report(summary(targets, results, python))


def compile_proxy(python: Interpreter) -> None:
    """Unless it is already; without a compiler the sources are measured."""
    command = [python.path, "-m", "slipstream_proxy.process.compiled"]
    subprocess.run(command, env={**os.environ, **python.env}, check=False, stdout=sys.stderr)


def shown(results: Results, targets: list[Target]) -> None:
    """Medians of each case and target."""
    columns = {"rps": 10, "p50_us": 10, "p99_us": 11, "cpu_us": 9, "cpu_us_per_event": 14}
    print(f"{'':22}{'body':8}{'conns':>6}{'req/s':>10}{'p50 us':>10}{'p99 us':>11}{'CPU us':>9}{'CPU us/event':>14}")
    for body, connections in CASES:
        for target in targets:
            found = results.get((target.name, body, connections), [])
            row = ""
            for what, width in columns.items():
                values = [r[what] for r in found if what in r]
                row += f"{statistics.median(values):{width}.1f}" if values else f"{'-':>{width}}"
            if found:
                print(f"{target.name:22}{body:8}{connections:6}{row}")


def summary(targets: list[Target], results: Results, python: Interpreter) -> dict[str, object]:
    """The medians of the rounds' ratios."""

    def beside(name: str, peer: str, body: str, connections: int, what: str) -> float | None:
        mine, theirs = ([r[what] for r in results.get((n, body, connections), [])] for n in (name, peer))
        return ratio(mine, theirs)

    recording = [t for t in targets if t.config is not None]
    return {
        "rps_vs_nginx_c32": beside(OURS, "nginx", "1k", 32, "rps"),
        "rps_vs_nginx_c256": beside(OURS, "nginx", "1k", 256, "rps"),
        "p50_vs_nginx_c1": beside(OURS, "nginx", "1k", 1, "p50_us"),
        "chunk_cpu_vs_nginx": beside(OURS, "nginx", "stream", 32, "cpu_us_per_event"),
        "rps_vs_litellm_c32": beside(OURS, "litellm", "1k", 32, "rps"),
        **{f"rps_vs_{peer}_c32": beside(OURS, peer, "1k", 32, "rps") for peer in PEERS},
        **{f"chunk_cpu_vs_{peer}": beside(OURS, peer, "stream", 32, "cpu_us_per_event") for peer in PEERS},
        "power_rps_vs_nginx_c32": beside(POWER, "nginx", "1k", 32, "rps"),
        "rps_vs_nginx_c32_30k": beside(OURS, "nginx", "30k", 32, "rps"),
        "recorded": sum(t.recorded() for t in recording),
        "answered": sum(t.answered for t in recording),
        "interpreter": f"{python.version} at {python.path}",
    }


if __name__ == "__main__":
    main()
