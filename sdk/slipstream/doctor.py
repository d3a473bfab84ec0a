"""``slipstream doctor``: what is wrong, each finding with its fix."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal

import httpx

from slipstream.client import Client
from slipstream.config import Config
from slipstream.engine import has_gpu
from slipstream.errors import ApiError

LOW_DISK_BYTES = 2 * 2**30
ROUTE_OFF = (404, 405)
NO_RIGHT = (401, 403)


@dataclass(slots=True)
class Finding:
    level: Literal["ok", "warn", "fail"]
    what: str
    fix: str = ""


def ok(what: str) -> Finding:
    return Finding("ok", what)


def check_engine(url: str, config: Config) -> Iterator[Finding]:
    """LoRA on, runtime updates allowed, ids and log-probabilities returned, on the engine's own answers."""
    headers = {"authorization": f"Bearer {config.engine.api_key}"} if config.engine.api_key else {}
    with httpx.Client(base_url=url, timeout=60.0, trust_env=False, headers=headers) as http:
        try:
            models = http.get("/v1/models").raise_for_status().json()["data"]
        except (httpx.HTTPError, ValueError, KeyError) as e:
            if isinstance(e, httpx.HTTPStatusError) and e.response.status_code in NO_RIGHT:
                yield Finding("fail", f"engine {url} refuses the key", "set engine.api_key to the engine's own")
            else:
                yield Finding(
                    "fail", f"engine {url} does not answer: {e!r}", "start vLLM there, or correct engine.urls"
                )
            return
        names = [m["id"] for m in models]
        yield ok(f"engine {url} serves {', '.join(names)}")
        if config.model_name not in names:
            yield Finding(
                "fail",
                f"the engine serves no model {config.model_name}",
                f"set engine.name to one of: {', '.join(names)}",
            )
            return
        yield _lora(http)
        yield from _capture(http, config.model_name)


def _lora(http: httpx.Client) -> Finding:
    """An adapter that can't exist: a server that could load one says it can't find it, another says that it does not do that."""
    r = http.post(
        "/v1/load_lora_adapter", json={"lora_name": "slipstream-doctor", "lora_path": "/nonexistent/slipstream-doctor"}
    )
    text = r.text.lower()
    if r.status_code in ROUTE_OFF and "slipstream-doctor" not in text:
        return Finding(
            "fail",
            "the engine takes no adapters at run time",
            "start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and --enable-lora",
        )
    if "enable_lora" in text or "lora is not enabled" in text or "--enable-lora" in text:
        return Finding(
            "fail", "LoRA is off in the engine", "start it with --enable-lora --max-lora-rank 16 --max-loras 4"
        )
    if r.status_code in NO_RIGHT:
        return Finding(
            "fail", f"the engine refuses the key ({r.status_code})", "set engine.api_key to the engine's own"
        )
    return ok("the engine takes adapters at run time")


def _capture(http: httpx.Client, model: str) -> Iterator[Finding]:
    body = {
        "model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "temperature": 0.5,
        "return_token_ids": True, "logprobs": True,
    }  # fmt: skip
    r = http.post("/v1/chat/completions", json=body)
    try:
        choice = r.raise_for_status().json()["choices"][0]
    except (httpx.HTTPError, ValueError, KeyError, IndexError) as e:
        yield Finding("fail", f"a chat completion failed: {e!r} {r.text[:200]}", "does the model have a chat template?")
        return
    if not choice.get("token_ids"):
        yield Finding(
            "fail",
            "the engine returns no token ids, so nothing can be trained on",
            "use vLLM 0.11 or newer (return_token_ids)",
        )
    elif not (choice.get("logprobs") or {}).get("content"):
        yield Finding("fail", "the engine returns no log-probabilities", "start it without --max-logprobs 0")
    else:
        yield ok("token ids and log-probabilities come back")


def check_proxy(url: str | None, key: str | None) -> Iterator[Finding]:
    with Client(url, key, timeout=10.0) as client:
        try:
            date = client.http.get("/healthz").headers.get("date")
            status = client.status()
        except (ApiError, httpx.HTTPError) as e:
            yield Finding("warn", f"no proxy at {client.url}: {e}", "start it with `slipstream up`, or give --url")
            return
        yield ok(f"the proxy at {client.url} answers; {status.calls} calls recorded")
        if date and abs(parsedate_to_datetime(date).timestamp() - time.time()) > 5:
            yield Finding(
                "warn", "the proxy's clock differs from this machine's by more than 5 s", "run an NTP client on both"
            )
        if status.capture_lost:
            yield Finding(
                "fail",
                f"{status.capture_lost} calls were served but not recorded",
                "free the spool's disk; see docs/operations.md",
            )
        reasons = status.untrainable
        if status.calls and sum(reasons.values()) > status.calls / 2:
            worst = max(reasons, key=lambda r: reasons[r])
            fix = (
                "an agent that always asks temperature 0 never learns"
                if "temperature" in worst
                else "docs/capture.md lists the reasons"
            )
            yield Finding(
                "warn",
                f"more than half of the calls can't be trained on, most because: {worst} ({reasons[worst]})",
                fix,
            )
        if status.calls > 200 and sum(status.episodes.values()) <= 1:
            yield Finding(
                "warn", f"all {status.calls} calls are one episode", "give each run its own x-slipstream-episode"
            )
        for sentence in status.waiting:
            yield ok(f"the next step waits: {sentence}")


def check_disk(config: Config) -> Iterator[Finding]:
    folder = config.root
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        yield Finding("fail", f"data_dir {config.root} can't be written", "choose another data_dir, or chown it")
        return
    free = shutil.disk_usage(folder).free
    if free < LOW_DISK_BYTES:
        yield Finding(
            "warn",
            f"{free / 2**30:.1f} GiB free where the spool and the store live ({folder})",
            "free some, or set store.keep_days",
        )
    with tempfile.TemporaryFile(dir=folder) as f:
        began = time.perf_counter()
        for _ in range(20):
            f.write(b"x" * 512)
            f.flush()
            os.fdatasync(f.fileno())
        each = (time.perf_counter() - began) / 20 * 1e3
    if each > 20:
        yield Finding(
            "warn",
            f"fdatasync takes {each:.0f} ms here",
            'put data_dir on a faster disk, or set proxy.durability = "process"',
        )
    else:
        yield ok(f"disk: {free / 2**30:.0f} GiB free, fdatasync {each:.1f} ms")


def check_port(config: Config) -> Iterator[Finding]:
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((config.proxy.host, config.proxy.port))
        except OSError as e:
            yield Finding(
                "warn",
                f"{config.proxy.host}:{config.proxy.port} is taken ({e.strerror})",
                "fine if it is the proxy; else set proxy.port",
            )
        else:
            yield ok(f"{config.proxy.host}:{config.proxy.port} is free or ours to bind")


def check_store(config: Config) -> Iterator[Finding]:
    if not config.store_url.startswith("postgres"):
        yield ok(f"store: {config.store_url}")
        return
    try:
        import psycopg

        with psycopg.connect(config.store_url, connect_timeout=5) as connection:
            connection.execute("select 1")
        yield ok("PostgreSQL answers")
    except ModuleNotFoundError:
        yield Finding("fail", "psycopg is not installed", "pip install 'slipstream[proxy]'")
    except Exception as e:
        yield Finding("fail", f"PostgreSQL does not answer: {e}", "correct store.url")


def check_judge(config: Config) -> Iterator[Finding]:
    judge = config.judge
    if judge.model is None:
        yield ok("no LLM judge is configured" + (f" (judge.function = {judge.function})" if judge.function else ""))
        return
    if judge.api_key_env and not os.environ.get(judge.api_key_env):
        yield Finding(
            "fail", f"judge.api_key_env names {judge.api_key_env}, which is not set", f"export {judge.api_key_env}=…"
        )
    else:
        yield ok(f"judge {judge.model}")


def check_trainer(config: Config) -> Iterator[Finding]:
    if not config.trainer.enabled:
        return
    versions: dict[str, str] = {}
    for name in ("torch", "transformers", "trl", "peft", "accelerate"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(
                "fail", f"{name} is not installed, so the trainer can't start", "pip install 'slipstream[trainer]'"
            )
            return
    trl = tuple(int(x) for x in versions["trl"].split(".")[:2])
    if not (1, 15) <= trl < (1, 17):
        yield Finding("fail", f"trl {versions['trl']} was not tried", "pip install 'trl>=1.15,<1.17'")
    elif not has_gpu() and trl < (1, 16):
        yield Finding("fail", f"trl {versions['trl']} has no CPU path for GRPO", "pip install 'trl>=1.16,<1.17'")
    else:
        yield ok(
            "trainer: "
            + ", ".join(f"{k} {v}" for k, v in versions.items())
            + ("" if has_gpu() else " (no GPU: small models only)")
        )


def examine(config: Config, url: str | None, key: str | None) -> Iterator[Finding]:
    """All checks; one that breaks is a finding too."""
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        *((f"engine {u}", lambda u=u: check_engine(u, config)) for u in config.engine.urls),
        ("proxy", lambda: check_proxy(url, key)), ("disk", lambda: check_disk(config)), ("port", lambda: check_port(config)),
        ("store", lambda: check_store(config)), ("judge", lambda: check_judge(config)), ("trainer", lambda: check_trainer(config)),
    ]  # fmt: skip
    if not config.engine.urls and not config.engine.model:
        yield Finding("warn", "no engine is configured", "set engine.model (for `up`) or engine.urls")
    elif config.engine.model and not config.engine.urls:
        folder = Path(config.engine.model).expanduser()
        yield ok(f"engine.model {config.engine.model}" + (" (a folder)" if folder.is_dir() else " (from a hub)"))
    for name, check in checks:
        try:
            yield from check()
        except Exception as e:
            yield Finding("fail", f"the check of {name} itself failed: {e!r}", "please report it")


def as_json(findings: list[Finding]) -> list[dict[str, Any]]:
    return [{"level": f.level, "what": f.what, "fix": f.fix} for f in findings]
