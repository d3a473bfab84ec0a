"""``slipstream doctor``: what is wrong, each finding with its fix. Engines and the proxy have modules of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import tomli_w

from slipstream.config import Config
from slipstream.engines import started
from slipstream.engines.findings import Finding, fail, ok, warn
from slipstream.errors import StartError
from slipstream.operate.doctor.engine import check_engine, check_router
from slipstream.operate.doctor.imports import check_imports
from slipstream.operate.doctor.ports import Running, check_ports, find_running
from slipstream.operate.doctor.proxy import check_proxy
from slipstream.operate.run.preflight import untrainable
from slipstream.settings.judge import is_own
from slipstream.shared.hub import check_own_code, trouble_of_hub
from slipstream.shared.machine import has_gpu, installed
from slipstream.shared.machine import versions as package_versions
from slipstream.shared.urls import without_password

WAIT_ADVICE = "wait; `up.log` in data_dir says how far it is"
FIX_MODEL = "`slipstream up --model MODEL` with a folder or a hub's name, or correct engine.model"
NO_STORE = "the spool keeps calls and rewards, and nothing is shown or trained on without the store"
NO_SCORES = "the judge scores nothing, so groups wait and are lost when they are too old"
NO_TRAINER = "the trainer can't start, so no step comes"
UNTRIED_VERSION_TEXT = "steps may fail, or compute something else"
IMPORTS_TAKE_TEXT = "torch and vLLM take half a minute"
LOW_DISK_BYTES = 2 * 2**30
SLOW_SYNC_MS = 20
KEY_ADVICE = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "mistral": "MISTRAL_API_KEY",
    "groq": "GROQ_API_KEY",
    "deepseek": "DEEPSEEK_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "together_ai": "TOGETHERAI_API_KEY",
    "fireworks_ai": "FIREWORKS_AI_API_KEY",
    "azure": "AZURE_API_KEY",
}
"""Where LiteLLM looks for a provider's key."""
TRAINED_WITH = {"torch": (2, 11), "transformers": (5, 17), "peft": (0, 21), "accelerate": (1, 10)}
"""The oldest versions that the trainer is tried with. TRL has an upper bound too."""


def check_disk(config: Config) -> Iterator[Finding]:
    folder = config.root
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        yield fail(
            f"data_dir {config.root} can't be written",
            "the proxy does not start without it: calls are recorded there",
            f'`sudo chown -R "$USER" {config.root}`, or set another data_dir',
        )
        return
    free = shutil.disk_usage(folder).free
    if free < LOW_DISK_BYTES:
        yield warn(
            f"{free / 2**30:.1f} GiB free where the spool and the store live ({folder})",
            "on a full disk calls are answered and not recorded",
            "make room (`slipstream status` says what takes it), or set data.max_gb or store.keep_days",
        )
    with tempfile.TemporaryFile(dir=folder) as f:
        began = time.perf_counter()
        for _ in range(20):
            f.write(b"x" * 512)
            f.flush()
            os.fdatasync(f.fileno())
        each = (time.perf_counter() - began) / 20 * 1e3
    if each > SLOW_SYNC_MS:
        yield warn(
            f"fdatasync takes {each:.0f} ms here",
            "the end of each reply waits for it",
            'put data_dir on a faster disk, or set proxy.durability = "process"',
        )
    else:
        yield ok(f"disk: {free / 2**30:.0f} GiB free, fdatasync {each:.1f} ms")


def check_store(config: Config) -> Iterator[Finding]:
    path = Path(config.store_url.removeprefix("duckdb:///"))
    if config.store_url.startswith("postgres"):
        yield _postgres(config.store_url)
    elif path.parent.exists() and not os.access(path.parent, os.X_OK):
        yield fail(f"the store {path} is another user's", NO_STORE, f'`sudo chown -R "$USER" {path.parent}`')
    elif not path.is_file():
        yield ok(f"store: {without_password(config.store_url)} (to be made)")
    else:
        yield _duckdb(path)


def _postgres(url: str) -> Finding:
    try:
        import psycopg

        with psycopg.connect(url, connect_timeout=5) as connection:
            connection.execute("create temporary table slipstream_doctor (x int)")
            row = connection.execute("show server_version").fetchone()
        return ok(f"PostgreSQL {row[0] if row else ''} answers, and may be written")
    except ModuleNotFoundError:
        return fail("psycopg is not installed", NO_STORE, "pip install 'slipstream[proxy]'")
    except Exception as e:
        return fail(
            f"PostgreSQL does not answer: {without_password(e)}",
            NO_STORE,
            "start it (`pg_isready`), or correct store.url",
        )


def _duckdb(path: Path) -> Finding:
    try:
        import duckdb
    except ModuleNotFoundError:
        return fail("duckdb is not installed", NO_STORE, "pip install 'slipstream[proxy]'")
    try:
        duckdb.connect(path, read_only=True).close()
    except Exception as e:
        if "lock" in str(e).lower():
            return ok(f"store: {path} is open in a running proxy")
        return fail(
            f"the store {path} can't be opened: {type(e).__name__}",
            NO_STORE,
            "start the proxy (`slipstream up`): it sets the file aside and fills a new one from the spool; "
            "or restore a backup",
        )
    return ok(f"store: {path} can be opened by DuckDB {duckdb.__version__}")


def check_judge(config: Config) -> Iterator[Finding]:
    """Its scores count, a key is there, and an OpenAI-compatible API takes it."""
    judge = config.judge
    for unweighted in (name for name in judge.names if name not in config.reward.weights):
        yield warn(
            f"the judge's scores named {unweighted!r} train nothing: reward.weights has no entry for them",
            "the judge costs money and time for scores that nobody uses",
            f"add {tomli_w.dumps({unweighted: 1.0}).strip()} to reward.weights, or leave reward.weights out",
        )
    if judge.model is None:
        yield ok("no LLM judge is configured" + (f" (judge.function = {judge.function})" if judge.function else ""))
        return
    if is_own(judge.model):
        yield ok(
            f"judge {judge.model}: a model of this proxy, whose scores count once two votes on the same runs agree "
            "(`slipstream judge eval` measures it against rewards)"
        )
        return
    name = judge.api_key_env or KEY_ADVICE.get(judge.model.partition("/")[0] if "/" in judge.model else "openai")
    if judge.api_key_env and not os.environ.get(judge.api_key_env):
        what = f"judge.api_key_env names {judge.api_key_env}, which is not set"
        yield fail(what, NO_SCORES, f"export {judge.api_key_env}=…")
    elif name and not judge.api_base and not os.environ.get(name):
        yield fail(
            f"no key for the judge {judge.model}: {name} is not set",
            NO_SCORES,
            f"export {name}=…, or set judge.api_key_env",
        )
    elif judge.api_base:
        yield _judge_answers(judge.api_base, os.environ.get(name or ""), judge.model)
    else:
        yield ok(f"judge {judge.model}" + (f", its key in {name}" if name else ""))


def _judge_answers(base: str, key: str | None, model: str) -> Finding:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        status = httpx.get(f"{base.rstrip('/')}/models", headers=headers, timeout=10.0).status_code
    except (httpx.HTTPError, httpx.InvalidURL) as e:
        return fail(
            f"the judge's API {base} does not answer: {type(e).__name__}",
            NO_SCORES,
            "start it, or correct judge.api_base",
        )
    if status in (401, 403):
        return fail(
            f"the judge's API {base} refuses the key",
            NO_SCORES,
            "export the right key in the variable that judge.api_key_env names",
        )
    return ok(f"judge {model} at {base}")


def check_trainer(config: Config) -> Iterator[Finding]:
    """Versions that it is tried with, in its own environment, and the GPU."""
    if not config.trainer.enabled:
        return
    python = config.trainer.python
    pip = f"{python} -m pip" if python else "pip"
    try:
        found = package_versions(("torch", "transformers", "trl", "peft", "accelerate", "unsloth"), python)
    except (OSError, subprocess.SubprocessError, ValueError) as e:
        fix = "set trainer.python to the Python of an environment"
        yield fail(f"trainer.python: {python} can't be run ({type(e).__name__})", NO_TRAINER, fix)
        return
    if found["unsloth"] is None:
        del found["unsloth"]
        if config.trainer.mode == "frugal":
            yield fail(
                "trainer.mode is frugal, and Unsloth is not installed",
                NO_TRAINER,
                f"{pip} install 'slipstream[unsloth]'",
            )
    if found["torch"] is None and not python and not installed("duckdb"):
        yield ok("the client alone is installed here: proxy and trainer run elsewhere")
        return
    if missing := [name for name, version in found.items() if version is None]:
        yield fail(f"{missing[0]} is not installed", NO_TRAINER, f"{pip} install 'slipstream[trainer]'")
        return
    versions = {name: version for name, version in found.items() if version is not None}
    old = [f"{n} {versions[n]}" for n, least in TRAINED_WITH.items() if _numbers(versions[n]) < least]
    trl = _numbers(versions["trl"])
    if not (1, 15) <= trl < (1, 17):
        yield fail(f"trl {versions['trl']} is untested", UNTRIED_VERSION_TEXT, f"{pip} install 'trl>=1.15,<1.17'")
    elif not has_gpu() and trl < (1, 16):
        yield fail(f"trl {versions['trl']} has no CPU path for GRPO", NO_TRAINER, f"{pip} install 'trl>=1.16,<1.17'")
    elif old:
        what = f"{', '.join(old)}: older than the trainer is tried with"
        yield fail(what, UNTRIED_VERSION_TEXT, f"{pip} install -U 'slipstream[trainer]'")
    else:
        there = f" ({python})" if python else ""
        yield ok(f"trainer{there}: " + ", ".join(f"{k} {v}" for k, v in versions.items()))
    if not python:
        try:
            check_own_code(config.trainer.model or config.engine.model)
        except StartError as e:
            what = f"the trainer can't load it: {e}"
            yield fail(what, NO_TRAINER, "set trainer.enabled = false, or choose another model")
    yield _gpu(versions["torch"])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int("".join(c for c in x if c.isdigit()) or 0) for x in version.partition("+")[0].split(".")[:2])


def _gpu(torch: str) -> Finding:
    if not has_gpu():
        return ok("no GPU: the trainer works on the CPU, for small models only")
    if torch.endswith("+cpu"):
        return fail(
            f"there is a GPU, and torch {torch} cannot use it",
            "the trainer computes on the CPU, which takes minutes a step even for a small model",
            "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128 (or your CUDA's)",
        )
    ask = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(ask, check=True, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError) as e:
        return warn(
            f"nvidia-smi does not answer: {type(e).__name__}",
            "if the driver is not loaded, engine and trainer find no GPU",
            "run `nvidia-smi` and mend what it says, or install the driver",
        )
    return ok("GPU: " + "; ".join(said.splitlines()))


def examine(
    config: Config, url: str | None, key: str | None, looking: Callable[[str], None] = lambda _: None
) -> Iterator[Finding]:
    """All checks; one that breaks is a finding too. ``looking`` gets what is examined next."""
    looking("examining what runs here …")
    running = find_running(config, url, key)
    asked = config
    named = config.engine.urls and (config.engine.name or config.engine.model)
    if running.model and not named:  # what `up` was started with may stand on its command line alone
        asked = config.model_copy(update={"engine": config.engine.model_copy(update={"name": running.model})})
    urls = config.engine.addresses() or (() if running.busy else running.engines)
    try:
        there = asked.engine.model_copy(update={"urls": list(urls)})
        text_only = untrainable(asked.model_copy(update={"engine": there}))
    except Exception:
        text_only = None  # the engine's own check says what is wrong
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("engine", lambda: check_configured(config, running)),
        *((f"engine {u}", partial(check_engine, u, asked)) for u in urls),
        ("engine.router", lambda: check_router(asked, urls)),
        ("proxy", lambda: check_proxy(url or running.proxy, key, running.busy, trainable=text_only is None)),
        ("disk", lambda: check_disk(config)),
        ("ports", lambda: check_ports(config, running)),
        ("store", lambda: check_store(config)),
        ("judge", lambda: check_judge(config)),
        ("trainer", lambda: check_trainer(config) if text_only is None else iter(())),
        ("imports", lambda: check_imports(config, running)),
    ]
    judge_fails = False
    for name, check in checks:
        looking(f"examining {name} …" + (f" ({IMPORTS_TAKE_TEXT})" if name == "imports" else ""))
        try:
            for found in check():
                judge_fails |= (found.level, found.about) == ("fail", "judge")
                if not (name == "judge" and judge_fails and found.level == "ok"):
                    yield found
        except Exception as e:
            yield fail(
                f"the check of {name} itself failed: {e!r}",
                "nothing is known of this part",
                "run `slipstream doctor --json` again, and report it with this line if it stays",
            )


def check_configured(config: Config, running: Running) -> Iterator[Finding]:
    if running.busy:
        yield warn(running.busy, "agents get no answers until the engine does", WAIT_ADVICE)
        return
    if config.engine.urls or running.engines:
        return
    if not config.engine.model:
        yield warn(
            "no engine is configured",
            "no call of the trained model can be answered",
            "`slipstream init` writes a configuration; or set engine.model (for `up`) or engine.urls",
        )
        return
    try:
        engine = started(config)
        engine.check_model(config.engine.model)
        lacking = engine.without_template(config)
        says = engine.parsers(config)[lacking is not None :]
    except StartError as e:
        yield fail(str(e), "the engine does not start with this model", FIX_MODEL)
        return
    model = config.engine.model
    if (trouble := trouble_of_hub(model)) is not None:
        yield warn(
            f"engine.model {model} is not here, and {trouble}", "`slipstream up` can't fetch the model", FIX_MODEL
        )
    else:
        yield ok(f"engine.model {model}" + (" (a folder)" if Path(model).expanduser().is_dir() else " (from a hub)"))
    if says:
        yield ok("; ".join(says))
    if lacking is not None:
        yield lacking


def as_json(findings: list[Finding]) -> list[dict[str, Any]]:
    return [{"level": f.level, "what": f.what, "why": f.why, "fix": f.fix} for f in findings]
