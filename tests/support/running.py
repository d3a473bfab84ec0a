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
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "data"
    tree: dict[str, Any] = {
        "data_dir": str(data), "proxy": {"port": 0}, "engine": {"urls": [engine_url], "name": "inbox", "model": str(MODEL)}, "gate": {"holdout": 0.0},
    }  # fmt: skip
    for name, value in overrides.items():
        tree[name] = {**tree.get(name, {}), **value} if isinstance(value, dict) else value
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
