"""Requests a second, latency and CPU of the proxy beside nginx and no proxy at all, in alternating rounds of one run.

    python benchmarks/proxy/bench.py [--rounds N] [--seconds S]

The proxy under test has one core, mock and load generator share another. The proxy has keys, tags, a model map and metrics on and records
every call. The last line is one JSON object with the medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from slipstream.config import Config
from slipstream_proxy.keys import Keys
from slipstream_proxy.spool import list_segments, read_segment

HERE = Path(__file__).parent
CORES = sorted(os.sched_getaffinity(0))
PROXY_CORE, OTHER_CORE = CORES[0], CORES[-1]
TICK = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def compiled(folder: Path, name: str) -> Path:
    out = folder / name
    subprocess.run(["cc", "-O2", "-o", str(out), str(HERE / f"{name}.c")], check=True)
    return out


def start(stack: contextlib.ExitStack, command: list, core: int, **kw) -> subprocess.Popen:
    process = subprocess.Popen([str(c) for c in command], preexec_fn=lambda: os.sched_setaffinity(0, {core}), **kw)  # noqa: PLW1509 - no threads here

    def end() -> None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(end)
    return process


def wait_port(port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"nothing listens on {port}")


def cpu_seconds(pid: int) -> float:
    """Of a process and its children (nginx's worker), in user and system mode."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(folder.name) == pid or int(fields[1]) == pid:
            total += int(fields[11]) + int(fields[12])
    return total / TICK


class Target:
    def __init__(self, name: str, port: int, pid: int, key: str = "sk-none") -> None:
        self.name, self.port, self.pid, self.key = name, port, pid, key


def run(load: Path, target: Target, connections: int, seconds: float, body: Path) -> dict:
    before = cpu_seconds(target.pid)
    command = [str(load), str(target.port), str(connections), str(seconds), str(body), target.key]
    out = subprocess.run(
        command, check=True, capture_output=True, text=True, preexec_fn=lambda: os.sched_setaffinity(0, {OTHER_CORE})
    ).stdout
    found = json.loads(out.splitlines()[-1])
    spent = cpu_seconds(target.pid) - before
    found["cpu_us"] = spent / max(1, found["answered"]) * 1e6
    found["cpu_us_per_event"] = spent / found["events"] * 1e6 if found["events"] else None
    if found["bad"]:
        raise SystemExit(f"{target.name}: {found['bad']} answers were not 200")
    return found


def start_slipstream(stack: contextlib.ExitStack, folder: Path, mock: int, durability: str) -> tuple[Target, Config]:
    data = folder / durability
    _, secret = Keys(data / "keys.json").add("bench", ["inference"])
    config = Config(
        data_dir=str(data),
        proxy={"durability": durability},
        engine={"urls": [f"http://127.0.0.1:{mock}"], "name": "m"},
        models={"gpt-*": {"trained": "m"}},
    )
    sock = socket.create_server(("127.0.0.1", 0), backlog=4096)
    stack.enter_context(contextlib.closing(sock))
    env = {**os.environ, "SLIPSTREAM_CONFIG_JSON": config.model_dump_json(), "SLIPSTREAM_LOG": "WARNING"}
    command = [sys.executable, "-m", "slipstream_proxy.data.worker", "0", sock.fileno()]
    process = start(stack, command, PROXY_CORE, env=env, pass_fds=(sock.fileno(),))
    port = sock.getsockname()[1]
    wait_port(port)
    return Target(f"slipstream ({durability})", port, process.pid, secret), config


def start_nginx(stack: contextlib.ExitStack, folder: Path, mock: int) -> Target | None:
    if not shutil.which("nginx"):
        return None
    port, home = free_port(), folder / "nginx"
    home.mkdir()
    (home / "nginx.conf").write_text(
        (HERE / "nginx.conf").read_text().replace("MOCK", str(mock)).replace("LISTEN", str(port))
    )
    process = start(stack, ["nginx", "-p", home, "-c", home / "nginx.conf"], PROXY_CORE)
    wait_port(port)
    return Target("nginx", port, process.pid)


def fdatasyncs(folder: Path, seconds: float = 1.0) -> float:
    with (folder / "sync").open("wb") as file:
        count, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            file.write(b"x" * 4096)
            file.flush()
            os.fdatasync(file.fileno())
            count += 1
    return count / seconds


def bodies(folder: Path) -> dict[str, Path]:
    found = {}
    for name, size in (("1k", 900), ("30k", 30_000)):
        found[name] = folder / f"body-{name}"
        found[name].write_text(
            json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "x" * size}], "temperature": 1.0})
        )
    found["stream"] = folder / "body-stream"
    found["stream"].write_text(
        json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "x" * 900}], "stream": True})
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        load, mock_binary = compiled(folder, "load"), compiled(folder, "mock")
        mock_port = free_port()
        mock = start(stack, [mock_binary, mock_port, 32, 5], OTHER_CORE)
        wait_port(mock_port)
        nginx = start_nginx(stack, folder, mock_port)
        ours, config = start_slipstream(stack, folder, mock_port, "process")
        power, power_config = start_slipstream(stack, folder, mock_port, "power")
        targets = [Target("direct", mock_port, mock.pid), *([nginx] if nginx else []), ours, power]
        body = bodies(folder)
        cases = [("1k", 1), ("1k", 32), ("1k", 256), ("30k", 32), ("stream", 32)]
        for target in targets:
            run(load, target, 8, 0.5, body["1k"])
        results: dict[tuple[str, str, int], list[dict]] = {}
        answered = {ours.name: 0, power.name: 0}
        for number in range(options.rounds):
            for case in cases:
                for target in targets:
                    found = run(load, target, case[1], options.seconds, body[case[0]])
                    results.setdefault((target.name, *case), []).append(found)
                    if target.name in answered:
                        answered[target.name] += found["answered"]
            print(f"round {number + 1} of {options.rounds} done", file=sys.stderr)
        report(targets, cases, results, nginx is not None, fdatasyncs(folder), answered, [config, power_config])


def recorded(config: Config) -> int:
    return sum(
        1 for segments in list_segments(config.spool_dir).values() for _, path in segments for _ in read_segment(path)
    )


def report(targets, cases, results, with_nginx, syncs, answered, configs) -> None:
    def median(name: str, body: str, connections: int, what: str) -> float | None:
        found = [r[what] for r in results[(name, body, connections)] if r[what] is not None]
        return statistics.median(found) if found else None

    print(f"{'':22}{'body':8}{'conns':>6}{'req/s':>10}{'p50 us':>10}{'p99 us':>10}{'CPU us':>9}{'CPU us/event':>14}")
    for body, connections in cases:
        for target in targets:
            row = [
                median(target.name, body, connections, w)
                for w in ("rps", "p50_us", "p99_us", "cpu_us", "cpu_us_per_event")
            ]
            print(
                f"{target.name:22}{body:8}{connections:6}"
                + "".join(
                    f"{x:{w}.1f}" if x is not None else f"{'-':>{w}}"
                    for x, w in zip(row, (10, 10, 10, 9, 14), strict=True)
                )
            )

    def ratio(name: str, body: str, connections: int, what: str) -> float | None:
        if not with_nginx:
            return None
        pairs = zip(results[(name, body, connections)], results[("nginx", body, connections)], strict=True)
        return round(statistics.median(a[what] / b[what] for a, b in pairs if b[what]), 3)

    ours, power = "slipstream (process)", "slipstream (power)"
    warmed = [recorded(c) for c in configs]
    calls = [answered[ours], answered[power]]
    line = {
        "rps_vs_nginx_c32": ratio(ours, "1k", 32, "rps"),
        "rps_vs_nginx_c256": ratio(ours, "1k", 256, "rps"),
        "p50_vs_nginx_c1": ratio(ours, "1k", 1, "p50_us"),
        "chunk_cpu_vs_nginx": ratio(ours, "stream", 32, "cpu_us_per_event"),
        "power_rps_vs_nginx_c32": ratio(power, "1k", 32, "rps"),
        "fdatasync_per_s": round(syncs, 1),
        "recorded": warmed[0] >= calls[0] and warmed[1] >= calls[1],
        "calls_recorded": sum(warmed),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
