"""Thousands of streams begun in one moment, each a new run: does one fail, is one's adapter decided without the control plane?

    python benchmarks/proxy/burst.py [--streams 10000] [--rounds 3]

A whole proxy with two workers, DuckDB, an adapter on trial and a control arm beside it, and a bare relay with two processes, take turns in
front of one engine. The last line is one JSON object: ``streams_failed``, ``streams_local_pins``, and ``streams_first_byte`` (the median time to a
stream's first byte, against the relay's in the same round; median over the rounds).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from soak import API, write_adapter
from targets import HERE, compiled, free_port, wait_port

TOKENS, GAP_MS = 8, 1000
WORKERS = 2


@contextlib.contextmanager
def running(command: list[object], log: Path):
    """A process, wherever the machine has room for it."""
    with log.open("ab") as out:
        process = subprocess.Popen([str(part) for part in command], stdout=out, stderr=out)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def ask(method: str, url: str, body: object = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return bytes(reply.read())


def ready(url: str) -> None:
    until = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError):
            ask("GET", f"{url}/readyz")
            return
        if time.monotonic() > until:
            raise SystemExit("the proxy is not ready")
        time.sleep(0.1)


def put_on_trial(url: str, adapters: Path) -> None:
    """An adapter is live, the base model is its control arm: each new run's adapter is a choice."""
    write_adapter(adapters / "m@1", 1)
    ask("POST", f"{url}{API}/adapters?wait=30", {"path": "m@1", "step": 1})
    until = time.monotonic() + 30
    while b'"live"' not in ask("GET", f"{url}{API}/adapters"):
        if time.monotonic() > until:
            raise SystemExit("the adapter does not go live")
        time.sleep(0.1)


def pins(url: str) -> dict[str, int]:
    """How many were decided by whom."""
    found = {}
    for line in ask("GET", f"{url}/metrics").decode().splitlines():
        if line.startswith("slipstream_pins_total{"):
            found[line.partition('by="')[2].partition('"')[0]] = int(float(line.split()[-1]))
    return found


def streams_at_once(load: Path, port: int, body: Path, streams: int) -> dict[str, float]:
    out = subprocess.run([load, str(port), str(streams), "0", body], check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    found["failed"] = streams - found["answered"] + found["bad"]
    return found


def settings(folder: Path, engine: int, port: int) -> Path:
    path = folder / "slipstream.toml"
    path.write_text(
        f'data_dir = "{folder}/data"\n[engine]\nname = "m"\nurls = ["http://127.0.0.1:{engine}"]\nkind = "vllm"\n'
        f'[proxy]\nport = {port}\nworkers = {WORKERS}\n[models."gpt-*"]\ntrained = "m"\n'
    )
    return path


def burst(streams: int, rounds: int = 3) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        body, log = folder / "body", folder / "log"
        message = {"role": "user", "content": "x" * 900}
        body.write_text(json.dumps({"model": "gpt-4o", "messages": [message], "temperature": 1.0, "stream": True}))
        load, engine, relay, port = compiled(folder, "load"), free_port(), free_port(), free_port()
        stack.enter_context(running([compiled(folder, "mock"), engine, TOKENS, GAP_MS], log))
        stack.enter_context(running([sys.executable, HERE / "relay.py", relay, engine, WORKERS], log))
        command = [sys.executable, "-m", "slipstream.cli", "proxy", "--config", settings(folder, engine, port)]
        stack.enter_context(running(command, log))
        url = f"http://127.0.0.1:{port}"
        wait_port(relay)
        ready(url)
        put_on_trial(url, folder / "data" / "adapters")
        found: dict[str, list[dict[str, float]]] = {"relay": [], "proxy": []}
        for _ in range(rounds):
            found["relay"].append(streams_at_once(load, relay, body, streams))
            found["proxy"].append(streams_at_once(load, port, body, streams))
            time.sleep(2.0)  # what was recorded is stored
        by = pins(url)
    ratios = [ours["first_p50_us"] / bare["first_p50_us"] for ours, bare in zip(found["proxy"], found["relay"])]
    return {
        "streams": streams,
        "streams_failed": int(sum(one["failed"] for one in found["proxy"])),
        "streams_local_pins": by.get("worker", 0),
        "streams_central_pins": by.get("control", 0),
        "streams_first_byte": round(statistics.median(ratios), 2),
        "streams_first_ms": {name: [round(one["first_p50_us"] / 1000) for one in all_] for name, all_ in found.items()},
        "streams_whole_ms": {name: [round(one["p50_us"] / 1000) for one in all_] for name, all_ in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(json.dumps(burst(args.streams, args.rounds)))


if __name__ == "__main__":
    main()
