"""The doctor's look at what runs here: proxy, engine and sidecars of this configuration, and their ports."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import httpx

from slipstream.client import Client
from slipstream.config import Config
from slipstream.engines.findings import Finding, ok, warn
from slipstream.errors import SlipstreamError, StartError
from slipstream.settings.engine import ENGINE_HOST
from slipstream.shared.machine import why_taken
from slipstream.shared.processes.proxy_file import running_proxy
from slipstream.shared.processes.sidecars import read_stack


class Running(NamedTuple):
    """What already runs on this configuration: its own ports are no findings, and its engines are checked."""

    proxy: str | None = None
    engines: tuple[str, ...] = ()
    model: str | None = None
    sidecars: frozenset[str] = frozenset()
    busy: str | None = None
    """What the engine of a running `up` is busy with in place of answering."""

    def has(self, part: str, port: int) -> bool:
        urls = {"proxy": [self.proxy or ""], "engine": self.engines}.get(part)
        if urls is not None:
            return any(url.endswith(f":{port}") for url in urls)
        return part.partition(".")[0] in self.sidecars


def find_running(config: Config, url: str | None, key: str | None) -> Running:
    stack = read_stack(config.root)
    sidecars = frozenset(s.name for s in stack.sidecars if s.state == "running")
    try:
        own = running_proxy(config.root)
    except StartError:  # the check of the disk says it
        own = None
    busy = stack.engine.sentence(time.time()) if stack.engine else None
    try:
        with Client(url or own, key, timeout=10.0) as client:
            status = client.status()
    except (SlipstreamError, httpx.HTTPError):
        return Running(own, sidecars=sidecars, busy=busy)
    engines = tuple(str(e["url"]) for e in status.engines if e.get("url"))
    return Running(own or client.url, engines, next(iter(status.models), None), sidecars, busy)


def check_ports(config: Config, running: Running) -> Iterator[Finding]:
    """Those that the parts bind on this machine."""
    judges = config.judge.model or config.judge.function
    parts = [
        ("proxy", config.proxy.host, config.proxy.port),
        ("judge.metrics", config.judge.metrics_host, config.judge.metrics_port if judges else None),
        (
            "trainer.metrics",
            config.trainer.metrics_host,
            config.trainer.metrics_port if config.trainer.enabled else None,
        ),
        ("engine", ENGINE_HOST, config.engine.port if config.engine.model and not config.engine.urls else None),
    ]
    for name, host, port in parts:
        if port is not None and (name == "proxy" or port):
            yield _port(name, host, port, running)


def _port(name: str, host: str, port: int, running: Running) -> Finding:
    if running.has(name, port):
        return ok(f"{host}:{port} is served by the {name.partition('.')[0]} that runs on this data_dir")
    setting = f"{name}_port" if "." in name else f"{name}.port"
    if why := why_taken(host, port):
        return warn(
            f"{host}:{port} is taken ({why})",
            f"the {name.partition('.')[0]} does not start on a port that another program has",
            f"end what uses it (`ss -ltnp`), or set {setting} to another",
        )
    return ok(f"{host}:{port} is free" + ("" if name == "proxy" else f" ({name})"))
