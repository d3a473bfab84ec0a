"""Everything on one machine: engine, then proxy, then trainer and judge, each as soon as what it needs answers."""

from __future__ import annotations

import json
import socket
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from slipstream.config import Config
from slipstream.errors import StartError
from slipstream.operate.engine import engine_command
from slipstream.operate.supervisor import Child, Supervisor

CONFIG_ENV = "SLIPSTREAM_CONFIG_JSON"
"""The effective configuration, as it is handed to children."""
PROXY_TIMEOUT_SECONDS = 120.0


@dataclass(slots=True)
class Stack:
    url: str
    """The proxy's, without ``/v1``."""
    config: Config
    """With the engine's URL in it."""
    engine: Child | None
    proxy: Child
    trainer: Child | None
    judge: Child | None


def check_port(host: str, port: int) -> None:
    """Raises ``StartError`` when somebody listens there: said before a minute is spent on starting the engine."""
    if port == 0:
        return
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError as e:
            raise StartError(
                f"proxy.port: {host}:{port} can't be bound ({e.strerror}); set proxy.port or end what uses it"
            ) from e


async def _answers(url: str) -> bool:
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
            return (await client.get(url)).is_success
    except httpx.HTTPError:
        return False


def _self(command: str, config: Config, *args: str) -> Child:
    argv = [sys.executable, "-m", "slipstream.cli", command, *args]
    return Child(command, argv, {CONFIG_ENV: config.model_dump_json(), "PYTHONUNBUFFERED": "1"})


def _last_words(child: Child) -> str:
    errors = [line for line in child.tail if "Error" in line or "error" in line]
    return (errors or list(child.tail) or ["it said nothing"])[-1].strip()


async def start_engine(config: Config, supervisor: Supervisor, say: Callable[[str], None]) -> tuple[Child, str]:
    """vLLM, up and answering. Raises ``StartError`` with its last words when it ends before."""
    command = engine_command(config)
    say(f"starting vLLM with {config.engine.model} (a minute or so)")
    for line in command.says:
        say(line)
    child = Child("engine", command.argv, command.env)
    child.restart = False  # until it has answered once: a wrong flag or model does not get better by repeating it
    supervisor.start(child)
    if not await supervisor.until(child, lambda: _answers(command.url + "/health"), config.engine.start_timeout):
        if supervisor.stopping.is_set():
            return child, command.url
        raise StartError(f"the engine did not start: {_last_words(child)}")
    child.restart = True
    return child, command.url


async def _start_proxy(config: Config, supervisor: Supervisor) -> tuple[Child, str]:
    child = supervisor.start(_self("proxy", config))
    found: dict[str, str] = {}

    async def ready() -> bool:
        try:
            told = json.loads((config.root / "proxy.json").read_text())
        except (OSError, ValueError):
            return False
        if child.process is None or told.get("pid") != child.process.pid:
            return False  # of a run before
        found["url"] = told["url"]
        return await _answers(told["url"] + "/readyz")

    if not await supervisor.until(child, ready, PROXY_TIMEOUT_SECONDS) and not (
        supervisor.stopping.is_set() and not child.gave_up
    ):
        raise StartError(f"the proxy did not start: {_last_words(child)}")
    return child, found.get("url", "")


def _own_key(config: Config) -> dict[str, str]:
    """Where keys are in force, judge and trainer get one that lives as long as this stack's data folder needs it."""
    if not config.keys_file.is_file():
        return {}
    from slipstream_proxy.keys import Keys

    keys = Keys(config.keys_file)
    if not keys.list():
        return {}
    for old in [k for k in keys.list() if k.name.startswith("up-")]:
        keys.revoke(old.id)
    _, secret = keys.add(f"up-{uuid.uuid4().hex[:8]}", ["judge", "trainer", "reward"])
    return {"SLIPSTREAM_API_KEY": secret}


async def start_stack(config: Config, supervisor: Supervisor, say: Callable[[str], None]) -> Stack:
    """Start what the configuration asks for. The supervisor's ``stop`` ends it. Raises ``StartError``."""
    check_port(config.proxy.host, config.proxy.port)
    engine = None
    if not config.engine.urls:
        engine, url = await start_engine(config, supervisor, say)
        config = config.model_copy(
            update={"engine": config.engine.model_copy(update={"urls": [url], "name": config.model_name})}
        )
    proxy, url = await _start_proxy(config, supervisor)
    key = _own_key(config)
    trainer = judge = None
    if config.trainer.enabled and (config.trainer.model or config.engine.model) and not supervisor.stopping.is_set():
        trainer = _self("trainer", config, "--url", url)
        trainer.env |= key
        supervisor.start(trainer)
    if (config.judge.model or config.judge.function) and not supervisor.stopping.is_set():
        judge = _self("judge", config, "--url", url)
        judge.env |= key
        supervisor.start(judge)
    return Stack(url, config, engine, proxy, trainer, judge)
