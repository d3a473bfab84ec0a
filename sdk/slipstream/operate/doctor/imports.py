"""Whether what ``slipstream up`` will import can be imported. Versions alone do not say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slipstream.config import Config
from slipstream.engines import started
from slipstream.engines.findings import NO_CALLS, Finding, fail, ok
from slipstream.operate.doctor.ports import Running
from slipstream.operate.run.preflight import wants_judge
from slipstream.shared.imports import BESIDE_TORCH, import_errors, torch_fix
from slipstream.shared.machine import installed, versions

TRAINER_MODULE = "slipstream_trainer.run.start"
MISSING_PART_TEXTS = {
    "engine": NO_CALLS,
    "proxy": "agents get no answers, and nothing is recorded",
    "judge": "the judge can't start, so it scores nothing",
    "trainer": "the trainer can't start, so no step comes",
}
PART_EXTRAS = {"engine": "gpu", "proxy": "proxy", "judge": "judge", "trainer": "trainer"}


def check_imports(config: Config, running: Running) -> Iterator[Finding]:
    """Import each part that is installed and that ``up`` would start, side by side in processes of their own."""
    yield from _examine(_parts(config, running), None)
    python = config.trainer.python
    if config.trainer.enabled and python and None not in versions(("torch", "trl"), python).values():
        yield from _examine({"trainer": TRAINER_MODULE}, python)


def _parts(config: Config, running: Running) -> dict[str, str]:
    """Part → the module that its process imports. What is not installed is told by the parts' own checks."""
    parts = {}
    if not (config.engine.urls or running.engines) and (module := started(config).module) and _there(module):
        parts["engine"] = module
    if _there("duckdb"):
        parts["proxy"] = "slipstream_proxy.main"
    if wants_judge(config) and _there("litellm"):
        parts["judge"] = "slipstream_judge.run.worker"
    if config.trainer.enabled and not config.trainer.python and _there("torch") and _there("trl"):
        parts["trainer"] = TRAINER_MODULE
    return parts


def _there(module: str) -> bool:
    return installed(module.partition(".")[0])


def _examine(parts: Mapping[str, str], python: str | None) -> Iterator[Finding]:
    errors = import_errors(parts.values(), python)
    failed = {part: errors[module] for part, module in parts.items() if module in errors}
    there = f" ({python})" if python else ""
    if good := [part for part in parts if part not in failed]:
        yield ok(f"can be imported{there}: {', '.join(good)}")
    if not failed:
        return
    pip = f"{python} -m pip" if python else "pip"
    beside = versions(("torch", *BESIDE_TORCH), python)
    torch = beside.pop("torch")
    broken = import_errors([name for name, version in beside.items() if version is not None], python)
    if broken:
        each = "; ".join(f"{name} {beside[name]} does not load beside torch {torch}: {broken[name]}" for name in broken)
        why = "transformers and vLLM import it: " + "; ".join(
            dict.fromkeys(MISSING_PART_TEXTS[part] for part in failed)
        )
        yield fail(f"{each}{there}", why, torch_fix(broken, torch, pip))
    for part, error in failed.items():
        if not any(error == other for other in broken.values()):
            fix = f"{pip} install -U 'slipstream[{PART_EXTRAS[part]}]', or the version of that package that it names"
            yield fail(f"the {part}'s packages can't be imported{there}: {error}", MISSING_PART_TEXTS[part], fix)
