"""The doctor's look at a vLLM: everything by what it answers itself."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

from slipstream.config import Config
from slipstream.engines.engine import (
    LOAD_ROUTE,
    NEUTRAL_SAMPLING,
    UNLOAD_ROUTE,
    Engine,
    EngineAnswer,
    EngineFacts,
    EngineQuestion,
    NoAdapters,
    ask_now,
    ask_over,
)
from slipstream.engines.findings import NO_CALLS, NO_TOKENS, Finding, fail, ok, warn
from slipstream.engines.vllm.adapter_routes import cause_of, fix_of
from slipstream.engines.vllm.sampling import NO_CONFIG

PROBE_MODEL_NAME = "slipstream-doctor"
PROBE_RANK = 4096
"""Above what any vLLM takes (512): it refuses such an adapter, and says what it would take."""
UNSERVED_TEXT = "what is trained is not served: agents get the base model"
OLDEST_VLLM_VERSION = (0, 11)
"""The first vLLM with ``return_token_ids`` on chat completions."""
COLD_TEMPERATURE = 0.25
"""A temperature that makes distances of log-probabilities four times as large."""
LIKELIEST_TOKENS_ASKED = 3
"""Log-probabilities that are asked for. vLLM's list begins with the sampled token, however unlikely it is, so that the
second-likeliest is not always among two."""
MIN_LOGPROB_DISTANCE_NATS = 0.2
"""A distance too near to what rounding changes."""


def examine(engine: Engine, http: httpx.Client, config: Config, root: str | None) -> Iterator[Finding]:
    """LoRA on, runtime updates allowed, the largest rank, ids and log-probabilities returned."""
    version = str(ask_over(http, EngineQuestion("GET", "/version")).object.get("version", ""))
    if (numbers := tuple(map(int, re.findall(r"\d+", version)[:2]))) and numbers < OLDEST_VLLM_VERSION:
        yield fail(f"vLLM {version} is too old to return token ids", NO_TOKENS, "pip install -U 'vllm>=0.11'")
    found = check_lora(http, version)
    yield found
    if found.level == "ok":
        yield from check_rank(http, config)
    yield from check_capture(http, config.model_name)
    yield check_sampling(engine, http, config.model_name, root)


def check_lora(http: httpx.Client, version: str) -> Finding:
    """An adapter that can't exist. A server that loads adapters says that it can't find it; others refuse the route."""
    path = f"/nonexistent/{PROBE_MODEL_NAME}"
    r = http.post(LOAD_ROUTE, json={"lora_name": PROBE_MODEL_NAME, "lora_path": path})
    cause = cause_of(r.status_code, r.text, (PROBE_MODEL_NAME, path))
    if cause is None:
        return ok("the engine takes adapters at run time")
    plugin = cause is NoAdapters.NO_ROUTES and http.get("/slipstream").is_success
    what = f"the engine takes no adapters at run time: {cause.what}"
    return fail(what, UNSERVED_TEXT, fix_of(cause, plugin=plugin, version=version))


def check_rank(http: httpx.Client, config: Config) -> Iterator[Finding]:
    """The engine is offered an adapter of a rank that it can't take, in ``adapters.dir``: its answer says what it
    takes, or that it does not see
    that folder.
    """
    name = f"{PROBE_MODEL_NAME}-{secrets.token_hex(4)}"
    folder = config.adapters_dir / f".tmp-{name}"
    made = [p for p in (config.adapters_dir, config.adapters_dir.parent) if not p.exists()]
    try:
        folder.mkdir(parents=True)
        described = {
            "peft_type": "LORA",
            "r": PROBE_RANK,
            "lora_alpha": PROBE_RANK,
            "target_modules": ["q_proj"],
            "task_type": "CAUSAL_LM",
            "bias": "none",
            "base_model_name_or_path": config.model_name,
        }
        (folder / "adapter_config.json").write_text(json.dumps(described))
    except OSError as e:
        _remove(folder, made)
        yield warn(
            f"adapters.dir {config.adapters_dir} can't be written: {e.strerror}",
            "the trainer has to write each new version there",
            f'`sudo chown -R "$USER" {config.adapters_dir}`, or run the doctor where the trainer runs, as its user',
        )
        return
    try:
        seen = Path(config.engine.adapters_dir) if config.engine.adapters_dir else config.adapters_dir
        r = http.post(LOAD_ROUTE, json={"lora_name": name, "lora_path": str(seen / folder.name)})
        if r.is_success:
            http.post(UNLOAD_ROUTE, json={"lora_name": name})
        yield _rank_of(r, config, seen)
    finally:
        _remove(folder, made)


def _remove(folder: Path, made: list[Path]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for path in made:
        with contextlib.suppress(OSError):
            path.rmdir()


def _rank_of(r: httpx.Response, config: Config, seen: Path) -> Finding:
    text = r.text
    if found := re.search(r"max_lora_rank\W*(\d+)", text):
        rank, wanted = int(found[1]), config.trainer.lora_rank
        if wanted > rank:
            return fail(
                f"the engine takes adapters up to rank {rank}, and trainer.lora_rank is {wanted}",
                UNSERVED_TEXT,
                f"start it with --max-lora-rank {wanted}, or set trainer.lora_rank to {rank}",
            )
        return ok(f"the engine takes adapters up to rank {rank}; trainer.lora_rank is {wanted}")
    if re.search(r"no adapter found|not exist|no such file|can't find|does not contain|not found", text, re.IGNORECASE):
        return warn(
            f"the engine does not see the adapters' folder at {seen}",
            UNSERVED_TEXT,
            "share adapters.dir with it, and say in engine.adapters_dir where it is mounted there",
        )
    return ok("the engine sees the adapters' folder; it does not say its max rank")


def check_capture(http: httpx.Client, model: str) -> Iterator[Finding]:
    """Ids and log-probabilities of a small call, and log-probabilities as they were sampled from."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 2,
        **NEUTRAL_SAMPLING,
        "temperature": 0.5,
        "return_token_ids": True,
        "logprobs": True,
    }
    r = http.post("/v1/chat/completions", json=body)
    try:
        choice = r.raise_for_status().json()["choices"][0]
    except (httpx.HTTPError, ValueError, KeyError, IndexError) as e:
        yield fail(
            f"a chat completion failed: {e!r} {r.text[:200]}",
            NO_CALLS,
            "see the engine's log; if the model has no chat template, start it with --chat-template FILE",
        )
        return
    if not choice.get("token_ids"):
        yield fail(
            "the engine returns no token ids", NO_TOKENS, "pip install -U 'vllm>=0.11' (it knows return_token_ids)"
        )
    elif not (choice.get("logprobs") or {}).get("content"):
        yield fail("the engine returns no log-probabilities", NO_TOKENS, "start it without --max-logprobs 0")
    else:
        yield ok("token ids and log-probabilities come back")
        yield from check_temperature(http, body)


def check_sampling(engine: Engine, http: httpx.Client, model: str, root: str | None) -> Finding:
    """What it samples with where a call says nothing of it."""

    def ask(question: EngineQuestion) -> EngineAnswer:
        return ask_over(http, question)

    facts = EngineFacts(plugin=ask(EngineQuestion("GET", "/slipstream")).object)
    found = ask_now(engine.sampling(model, root, facts), ask)
    if not found.cuts:
        said = f"with {found.said()}" if found.values else "as the model likes"
        return ok(f"the engine samples {said} where a call says nothing")
    return warn(
        f"the engine samples with {found.said()} where a call says nothing (generation_config.json, or "
        "--override-generation-config)",
        "such calls are recorded so, and can't be trained on",
        f'{NO_CONFIG}; or set these fields in [models."{model}"] of slipstream.toml',
    )


def check_temperature(http: httpx.Client, body: Mapping[str, object]) -> Iterator[Finding]:
    """The distance between the two likeliest tokens grows as the temperature falls, if log-probabilities are those
    after temperature. Says nothing where the engine shows no such two.
    """
    asked = {**body, "max_tokens": 1, "top_logprobs": LIKELIEST_TOKENS_ASKED}
    warm, cold = (_distance(http, {**asked, "temperature": t}) for t in (1.0, COLD_TEMPERATURE))
    if warm is not None and cold is not None and warm > MIN_LOGPROB_DISTANCE_NATS and cold < 2 * warm:
        yield fail(
            "the engine's log-probabilities are those before temperature, and not those that it samples by",
            "calls at a temperature other than 1 can't be trained on",
            "start it with --logprobs-mode processed_logprobs",
        )


def _distance(http: httpx.Client, body: Mapping[str, object]) -> float | None:
    """Between the two greatest log-probabilities of a reply's first token."""
    with contextlib.suppress(httpx.HTTPError, ValueError, KeyError, IndexError, TypeError):
        choice = http.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]
        first, second = sorted((t["logprob"] for t in choice["logprobs"]["content"][0]["top_logprobs"]), reverse=True)[
            :2
        ]
        return float(first - second)
    return None
