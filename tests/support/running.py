"""A real proxy, as a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import tomli_w
from tests.support import MODEL, process, slipstream, wait_for

from slipstream.client import Client
from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.log.records import CallHead, Parsed
from slipstream_proxy.log.segments import Frame, list_segments, read_segment


@dataclass
class Running:
    url: str
    data_dir: Path
    process: subprocess.Popen[bytes]
    log: Path
    config: Path


@contextlib.contextmanager
def run_proxy(folder: Path, engine_url: str, **overrides: Any) -> Iterator[Running]:
    """`slipstream proxy` on a free port. Sections are given as keyword dicts: ``gate={"holdout": 0.0}``."""
    tree: dict[str, Any] = {
        "proxy": {"port": 0}, "engine": {"urls": [engine_url], "name": "inbox", "model": str(MODEL)}, "gate": {"holdout": 0.0},
    }  # fmt: skip
    for name, value in overrides.items():
        tree[name] = {**tree.get(name, {}), **value} if isinstance(value, dict) else value
    with run_settings(folder, tree) as running:
        yield running


@contextlib.contextmanager
def run_settings(folder: Path, tree: dict[str, Any]) -> Iterator[Running]:
    """`slipstream proxy` with these settings and all others at their defaults."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "data"
    tree = {"data_dir": str(data), **tree}
    config = folder / "slipstream.toml"
    config.write_text(tomli_w.dumps(tree))
    log = folder / "proxy.log"
    with process(slipstream("proxy", "--config", str(config)), log) as p:

        def ready() -> str:
            assert p.poll() is None, log.read_text()[-3000:]
            told = json.loads((data / "proxy.json").read_text())
            assert told["pid"] == p.pid
            return told["url"] if httpx.get(told["url"] + "/readyz", timeout=5, trust_env=False).is_success else ""

        yield Running(wait_for(ready, 90, 0.1, "the proxy is ready"), data, p, log, config)


def recorded(url: str, episode: str, calls: int = 1):
    """The episode with its tokens, once all its calls are stored."""

    def there():
        with Client(url) as client:
            found = client.episode(episode, tokens=True)
        return found if found.calls >= calls else None

    return wait_for(there, 60, 0.2, f"{episode} is stored")


def frame_of(running: Running, call: str) -> Frame:
    """A call of this id as it stands in the spool."""
    segments = [path for found in list_segments(running.data_dir / "spool").values() for _, path in found]
    (frame,) = [f for path in segments for f in read_segment(path) if f.head["id"] == call]
    return frame


def spooled(running: Running, call: str) -> tuple[CallHead, Parsed]:
    """The same, as the store will have it."""
    frame = frame_of(running, call)
    head = CallHead(**frame.head)
    return head, BY_NAME[head.dialect].parse(frame.request, frame.reply, head)
