"""What ``slipstream up`` checks before it starts anything. Each mistake that can never work is a line with its fix."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import httpx

from slipstream.config import Config
from slipstream.engines import detect, started
from slipstream.engines.engine import NO_IDS, EngineAway, ask_now, ask_over
from slipstream.errors import StartError
from slipstream.shared.discovery import is_source
from slipstream.shared.functions import need
from slipstream.shared.hub import check_own_code, fetch_description, model_config
from slipstream.shared.machine import installed, versions, why_taken
from slipstream.shared.processes.proxy_file import running_proxy

LEAST_ROOM = 64_000_000
"""Bytes: of the spool's first segments and the store's new file."""


def wants_trainer(config: Config) -> bool:
    return config.trainer.enabled and (config.trainer.model or config.engine.model) is not None


def wants_judge(config: Config) -> bool:
    """Of the agents' runs, or of those of a tenant."""
    own: list[Mapping[str, object]] = [
        {"model": config.judge.model, "function": config.judge.function},
        *(t.judge for t in config.tenants.values()),
    ]
    return any(judge.get("model") or judge.get("function") for judge in own)


def preflight(config: Config) -> Config:
    """Raises ``StartError`` for what can never work.

    Returns the configuration, with the engine's model name where none was given.
    """
    if config.engine.model is None and not config.engine.urls:
        raise StartError("no model: give --model PATH_OR_NAME, or --engine URL of an engine that already runs")
    check_keys(config)
    check_port(config.proxy.host, config.proxy.port)
    check_installed(config)
    if config.engine.urls:
        config = check_name(config)
    elif config.engine.model:
        fetch_description(config.engine.model)
        started(config).check_model(config.engine.model)
    if wants_trainer(config):
        if config.trainer.model:
            model_config(config.trainer.model, "trainer.model")
        if not config.trainer.python:  # another environment may have another transformers
            check_own_code(config.trainer.model or config.engine.model)
    if wants_judge(config):
        check_judge(config)
    return config


def check_alone(root: Path) -> None:
    """Own the data folder until this process ends, however it ends. Raises ``StartError`` where another `up` or proxy
    runs on it: found before an engine is started for nothing.
    """
    import fcntl  # what asks a running proxy works where there is none

    running = None
    with contextlib.suppress(OSError):  # ``check_room`` says what is wrong with the folder
        root.mkdir(parents=True, exist_ok=True)
        for path in (root, root / "lock"):  # of an `up`, and of a proxy
            try:
                held = os.open(path, os.O_RDONLY)
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path != root:
                    os.close(held)
            except FileNotFoundError:
                continue
            except BlockingIOError:
                running = running_proxy(root) or "its engine is starting"
    if running is not None:
        raise StartError(
            f"data_dir {root} is used by a `slipstream up` or proxy that runs already ({running}): end that one, or "
            "give this one another folder (--set data_dir=…)"
        )


def check_room(root: Path) -> None:
    """The data folder can be written, and its disk has room. Raises ``StartError``: nothing is started for nothing."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
        free = shutil.disk_usage(root).free
    except OSError as e:
        raise StartError(
            f"data_dir {root} cannot be written ({e.strerror}): give a folder that this user may write "
            "(--set data_dir=…)"
        ) from e
    if free < LEAST_ROOM:
        raise StartError(
            f"data_dir {root}: {free / 1e6:.0f} MB are free on its disk, and recording needs {LEAST_ROOM / 1e6:.0f} MB "
            "to begin: make room, or give a folder on a larger disk (--set data_dir=…)"
        )


def check_adapter_name(name: str) -> None:
    """Adapters' folders have the model's name in theirs. Raises ``StartError``."""
    if len(name) > 120 or not re.fullmatch(r"[A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*", name):
        raise StartError(
            f"the model is called {name}, and an adapter's folder cannot be: start vLLM with --served-model-name NAME "
            "(letters, digits and . _ ~ - /), or train nothing (--set trainer.enabled=false)"
        )


def check_port(host: str, port: int) -> None:
    """Somebody listens there: found before a minute is spent on starting the engine."""
    if port and (why := why_taken(host, port)):
        raise StartError(f"proxy.port: {host}:{port} can't be bound ({why}); set proxy.port or end what uses it")


def check_keys(config: Config) -> None:
    keys = need("slipstream_proxy.keys", "proxy").Keys(config.keys_file)
    need("slipstream_proxy.process.parent", "proxy").check_bind(config, keyed=bool(len(keys)))


def check_trainer(config: Config) -> None:
    """The trainer's packages, here or in its own environment. Raises ``StartError``."""
    python = config.trainer.python
    if python:
        try:
            found = versions(("slipstream", "torch", "trl", "peft", "unsloth"), python)
        except (OSError, subprocess.SubprocessError, ValueError) as e:
            raise StartError(
                f"trainer.python: {python} can't be run ({type(e).__name__}): give the Python of an "
                "environment, such as unsloth/bin/python"
            ) from e
    else:
        found = versions(("unsloth",))
    unsloth = found.pop("unsloth")
    if missing := [name for name, version in found.items() if version is None]:
        raise StartError(
            f"trainer.python: {', '.join(missing)} not installed there: {python} -m pip install 'slipstream[unsloth]' "
            "(or slipstream[trainer])"
        )
    if config.trainer.mode == "frugal" and unsloth is None:
        raise StartError(
            "trainer.mode is frugal, and Unsloth is not installed: make an environment with slipstream[unsloth] and "
            "set trainer.python to its Python, or set trainer.mode = 'auto'"
        )
    if not python and not all(map(installed, ("torch", "trl", "peft"))):
        raise StartError(
            "the trainer's packages are not installed: pip install 'slipstream[trainer]' (or --set "
            "trainer.enabled=false)"
        )


def check_installed(config: Config) -> None:
    """The parts that will run. For each that is missing: the line to paste."""
    if not config.engine.urls:
        started(config).check_installed()
    if wants_trainer(config):
        check_trainer(config)
    if config.judge.model and not installed("litellm"):
        raise StartError("LiteLLM, which the judge uses, is not installed: pip install 'slipstream[judge]'")


def check_name(config: Config) -> Config:
    """The engines serve the model that is asked for.

    Where no name is given and an engine serves one model, that one is meant.
    """
    served: set[str] = set()
    away = False
    for url in config.engine.addresses():
        try:
            reply = httpx.get(
                f"{url}/v1/models", headers=config.engine.headers(url), timeout=5.0, trust_env=False
            ).raise_for_status()
            # an adapter has a parent; what a client asks for is a base model
            served |= {str(m["id"]) for m in reply.json()["data"] if not m.get("parent")}
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
            away = True  # it may come: the proxy waits for it
    asked = config.engine.name or (config.model_name if config.engine.model else None)
    if asked is None and len(served) == 1:
        return config.model_copy(update={"engine": config.engine.model_copy(update={"name": served.pop()})})
    away |= any(is_source(url) for url in config.engine.urls)
    if asked not in served and not (away and (asked or not served)):
        named = f"no model called {asked}" if asked else "several models"
        raise StartError(f"the engine serves {named}: give --name, one of {', '.join(sorted(served)) or '(none)'}")
    return config


def untrainable(config: Config) -> str | None:
    """Why no trainer is started. None: nothing is known against it."""
    for url in config.engine.addresses():
        with httpx.Client(base_url=url, headers=config.engine.headers(url), trust_env=False) as http:
            try:
                engine, title = ask_now(
                    detect(config.engine.kind, config.model_name), lambda asked: ask_over(http, asked)
                )
            except EngineAway:
                continue  # one that is down may come
        if not engine.gives_ids:
            return (
                f"the engine {url} ({title}) gives no token ids: calls are recorded as text, and no trainer is "
                f"started; {engine.fixes.get(NO_IDS, '')}"
            )
    return None


def check_judge(config: Config) -> None:
    judge = config.judge
    if judge.api_key_env and judge.api_key_env not in os.environ:
        raise StartError(f"judge.api_key_env names {judge.api_key_env}, which is not set: export {judge.api_key_env}=…")
    if judge.function:
        module, colon, name = judge.function.partition(":")
        if not (colon and module and name):
            raise StartError(f"judge.function = {judge.function!r}: write module:function")
        top = module.partition(".")[0]
        if importlib.util.find_spec(top) is None and not any((Path.cwd() / n).exists() for n in (top, f"{top}.py")):
            raise StartError(f"judge.function = {judge.function!r}: there is no module {top} here")
