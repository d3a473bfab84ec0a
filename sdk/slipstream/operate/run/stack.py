"""Everything on one machine. The proxy starts beside the engine, which takes longest: once that answers, all is there.
The judge comes when the proxy answers; the trainer imports at once, and loads its model once the engine has its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slipstream.config import CONFIG_ENV, Config
from slipstream.engines import started
from slipstream.errors import StartError
from slipstream.operate.run.preflight import (
    check_adapter_name,
    check_name,
    preflight,
    untrainable,
    wants_judge,
    wants_trainer,
)
from slipstream.operate.run.watch import last_line
from slipstream.settings.judge import is_own
from slipstream.shared.backoff import rest
from slipstream.shared.functions import need
from slipstream.shared.machine import bytecode_env, has_gpu
from slipstream.shared.processes.health import answers
from slipstream.shared.processes.proxy_file import PROXY_FILE_NAME, SETTLED_FILE, running_proxy
from slipstream.shared.processes.remedies import ERROR_PATTERN, remedy
from slipstream.shared.processes.supervisor import NO_PROGRAM, Child, Supervisor

ENGINE_SETTLED_VARIABLE = "SLIPSTREAM_ENGINE_SETTLED"
"""To the engine: the file that it writes as soon as it has the GPU's memory that it takes."""
SEVERAL_ENGINE_OPTIONS = ("--data-parallel-size", "-dp")
"""Arguments with which an engine is several, of which the first one's memory says nothing."""
PROXY_TIMEOUT_SECONDS = 120.0
START_REPORT_INTERVAL_S = 20.0
"""Between two lines about an engine that does not answer yet."""
SIDECAR_FAILURES = 10
"""Failed starts in a row, over two minutes or more, after which trainer or judge stays down."""


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
    key: str
    """What `up` itself asks with."""


def _self(command: str, config: Config, *args: str) -> Child:
    argv = [sys.executable, "-P", "-m", "slipstream.cli", command, *args]
    env = {CONFIG_ENV: config.model_dump_json(), "PYTHONUNBUFFERED": "1"}
    return Child(command, argv, bytecode_env() | env)


def begin_engine(config: Config, supervisor: Supervisor, say: Callable[[str], None]) -> tuple[Child, str]:
    """→ The engine, which does not answer yet, and where it will."""
    engine = started(config)
    command = engine.command(config)
    say(f"starting {engine.title} with {config.engine.model} (a minute or so)")
    for line in command.says:
        say(line)
    # kept for ever, whatever its exit code: vLLM's server ends with 0 when its engine core is killed
    env = bytecode_env() | command.env
    if not any(arg.startswith(SEVERAL_ENGINE_OPTIONS) for arg in config.engine.args):
        env |= {ENGINE_SETTLED_VARIABLE: str(config.root / SETTLED_FILE)}
    child = Child("engine", command.argv, env, max_failures=None, hopeless=(), slow_start=True)
    child.restart = False  # until it has answered once: a second start does not fix a wrong flag or model
    return supervisor.start(child), command.url


async def engine_answers(
    child: Child, url: str, config: Config, supervisor: Supervisor, say: Callable[[str], None]
) -> None:
    """Until it does, or all is to end; ``say`` gets how far it is. Raises ``StartError``."""
    health = url + started(config).health
    began = reported = time.monotonic()

    async def ready() -> bool:
        nonlocal reported
        if await answers(health):
            return True
        if (now := time.monotonic()) - reported >= START_REPORT_INTERVAL_S:
            reported = now
            say(f"the engine starts ({now - began:.0f} s so far): {last_line(child.tail)}")
        return False

    if not await supervisor.until(child, ready, config.engine.start_timeout):
        if supervisor.stopping.is_set():
            return
        words = child.last_words()
        fix = remedy(words) or remedy("\n".join(line for line in child.tail if ERROR_PATTERN.search(line)))
        raise StartError(f"the engine did not start: {words}" + (f"\n{fix}" if fix else ""))
    child.restart = True
    supervisor.answered(child)
    supervisor.watch(_end_when_hung(child, health, config, supervisor))


async def _end_when_hung(child: Child, health: str, config: Config, supervisor: Supervisor) -> None:
    """A server can hang, or outlive its engine core. End it if it is silent for long: the supervisor restarts it."""
    answered, starts, last = True, child.starts, time.monotonic()
    while True:
        await asyncio.sleep(config.engine.health_interval)
        running = child.exit_code is None
        if child.starts != starts or not running or await answers(health):
            answered = running and (child.starts == starts)
            if answered:
                supervisor.answered(child)
            starts, last = child.starts, time.monotonic()
            continue
        limit = config.engine.hang_timeout if answered else config.engine.start_timeout
        if time.monotonic() - last > limit:
            supervisor.echo(child.name, f"has not answered {health} for {limit:g} s: it is ended and restarted")
            await supervisor.end(child, f"it did not answer for {limit:g} s")


async def _proxy_answers(child: Child, config: Config, supervisor: Supervisor) -> str:
    """→ Its URL, once it has an engine. Raises ``StartError``."""
    found: dict[str, str] = {}

    async def ready() -> bool:
        url = running_proxy(config.root, child.process.pid) if child.process else None
        if url is None:
            return False  # not there yet, or of a run before
        found["url"] = url
        return await answers(f"{url}/readyz")

    if not await supervisor.until(child, ready, PROXY_TIMEOUT_SECONDS) and not (
        supervisor.stopping.is_set() and not child.gave_up
    ):
        if (url := found.get("url")) and child.exit_code is None and await answers(f"{url}/healthz"):
            text = f"the proxy runs and no engine is up: none of {', '.join(config.engine.urls)} answered /health for "
            raise StartError(f"{text}{PROXY_TIMEOUT_SECONDS:g} s; start it, or say where it is with --engine")
        raise StartError(f"the proxy did not start: {child.last_words()}")
    return found.get("url", "")


def own_key(config: Config) -> dict[str, str]:
    """Judge, trainer and `up` itself have a key from the start: the first key that a person adds closes the proxy, and
    they go on.
    """
    keys = need("slipstream_proxy.keys", "proxy").Keys(config.keys_file)
    scopes = ["judge", "trainer", "reward", *(["inference"] if is_own(config.judge.model) else [])]
    try:
        for old in [k for k in keys.list() if k.name.startswith("up-")]:
            keys.revoke(old.id)  # an earlier release added them to the others
        return {"SLIPSTREAM_API_KEY": keys.reserve(f"up-{uuid.uuid4().hex[:8]}", scopes)}
    except OSError:  # the proxy cannot use this folder either, and says why
        return {}


async def named(config: Config, supervisor: Supervisor, say: Callable[[str], None], pause: float = 2.0) -> Config:
    """With the model's name, which the engine alone may know: one that is down is waited for then."""
    told = False
    while config.engine.urls and not (config.engine.name or config.engine.model):
        if not told:
            say(
                f"no engine answers at {', '.join(config.engine.urls)} yet. It is waited for, because it alone knows "
                "the model's name (--name NAME starts without it)"
            )
        told = True
        if await rest(pause, supervisor.stopping):
            break
        config = await asyncio.to_thread(check_name, config)
    return config


async def start_stack(config: Config, supervisor: Supervisor, say: Callable[[str], None]) -> Stack:
    """Start what the configuration asks for. The supervisor's ``stop`` ends it. Raises ``StartError``."""
    config = await named(preflight(config), supervisor, say)
    if wants_trainer(config) and (why := untrainable(config)) is not None:
        say(why)
        config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"enabled": False})})
    if wants_trainer(config):
        check_adapter_name(config.model_name)
    engine = None
    key = own_key(config)
    # its imports take as long as a good part of the engine's start: it makes them meanwhile, and touches no GPU
    if running_proxy(config.root) is None:  # of one that is no more, whose process id may come again
        for name in (PROXY_FILE_NAME, SETTLED_FILE):
            with contextlib.suppress(OSError):  # the proxy says what is wrong with the folder
                (config.root / name).unlink()
    trainer = supervisor.start(_sidecar("trainer", config, key, "--wait")) if wants_trainer(config) else None
    if not config.engine.urls:
        engine, url = begin_engine(config, supervisor, say)
        known = {"urls": [url], "kind": started(config).kind, "name": config.model_name, "cpu": not has_gpu()}
        config = config.model_copy(update={"engine": config.engine.model_copy(update=known)})
    proxy = supervisor.start(_self("proxy", config))
    if engine is not None:
        await engine_answers(engine, config.engine.urls[0], config, supervisor, say)
    with contextlib.suppress(OSError):  # not every engine says when it has its memory
        (config.root / SETTLED_FILE).touch()
    url = await _proxy_answers(proxy, config, supervisor)
    judge = None
    if trainer is not None:
        supervisor.ends_first(trainer)
    if wants_judge(config) and not supervisor.stopping.is_set():
        judge = supervisor.start(_sidecar("judge", config, key, "--url", url))
    return Stack(url, config, engine, proxy, trainer, judge, key["SLIPSTREAM_API_KEY"])


def _sidecar(command: str, config: Config, key: dict[str, str], *args: str) -> Child:
    """Agents are served without it. It is restarted; after many failures in a row it stays down."""
    child = _self(command, config, *args)
    child.env |= key
    if command == "trainer" and config.trainer.python:
        child.argv[0] = str(Path(config.trainer.python).expanduser())
    child.essential, child.may_end = False, True
    child.max_failures, child.hopeless = SIDECAR_FAILURES, (NO_PROGRAM,)
    return child
