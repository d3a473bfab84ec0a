"""Thousands of streams begun in one moment, each a new run: does one fail, is one's adapter decided without the control plane?

A whole proxy with two workers, DuckDB, an adapter on trial and a control arm beside it, and a bare relay with two processes, take turns in
front of one engine. It is the part ``streams`` of ``bench_growth``, and finds ``streams_failed``, ``streams_local_pins`` and ``streams_first_byte``:
the median time to a stream's first byte, against the relay's in the same round; median over the rounds.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import API, ask, compiled_c, free_port, in_turns, ratio, started, wait_for, wait_port
from tests.support.adapters import write_adapter
from tests.support.running import run_settings

HERE = Path(__file__).parent
TOKENS, GAP_MS = 8, 1000
WORKERS = 2


def put_on_trial(url: str, adapters: Path) -> None:
    """An adapter is live, the base model is its control arm: each new run's adapter is a choice."""
    write_adapter(adapters / "m@1", fill=1)
    ask("POST", f"{url}{API}/adapters?wait=30", {"path": "m@1", "step": 1})
    wait_for(lambda: b'"live"' in ask("GET", f"{url}{API}/adapters"), 30, 0.1, "the adapter does not go live")


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


def burst(streams: int, rounds: int = 3) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        body, log = folder / "body", folder / "log"
        message = {"role": "user", "content": "x" * 900}
        body.write_text(json.dumps({"model": "gpt-4o", "messages": [message], "temperature": 1.0, "stream": True}))
        load, engine, relay = compiled_c(HERE / "load.c", folder), free_port(), free_port()
        started(stack, [compiled_c(HERE / "mock.c", folder), engine, TOKENS, GAP_MS], log)
        started(stack, [sys.executable, HERE / "relay.py", relay, engine, WORKERS], log)
        tree = {
            "engine": {"name": "m", "urls": [f"http://127.0.0.1:{engine}"], "kind": "vllm"},
            "proxy": {"port": 0, "workers": WORKERS},
            "models": {"gpt-*": {"trained": "m"}},
        }
        proxy = stack.enter_context(run_settings(folder, tree))
        wait_port(relay)
        put_on_trial(proxy.url, folder / "data" / "adapters")
        port = int(proxy.url.rpartition(":")[2])

        def through_it() -> dict[str, float]:
            found = streams_at_once(load, port, body, streams)
            time.sleep(2.0)  # what was recorded is stored
            return found

        found = in_turns(rounds, {"relay": lambda: streams_at_once(load, relay, body, streams), "proxy": through_it})
        by = pins(proxy.url)
    first = {name: [one["first_p50_us"] for one in each] for name, each in found.items()}
    return {
        "streams": streams,
        "streams_failed": int(sum(one["failed"] for one in found["proxy"])),
        "streams_local_pins": by.get("worker", 0),
        "streams_central_pins": by.get("control", 0),
        "streams_first_byte": ratio(first["proxy"], first["relay"]),
        "streams_first_ms": {name: [round(one["first_p50_us"] / 1000) for one in all_] for name, all_ in found.items()},
        "streams_whole_ms": {name: [round(one["p50_us"] / 1000) for one in all_] for name, all_ in found.items()},
    }
