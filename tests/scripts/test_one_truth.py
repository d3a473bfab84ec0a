"""What two parts of the project both say is the same in both."""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path

import pytest
from tests.support import ROOT

from slipstream.config import Config, load_config
from slipstream.contract import check_lora_rank
from slipstream.settings import TrainerConfig
from slipstream_judge.worker import lease_seconds
from slipstream_proxy.control.adapters.validation import BadAdapter, check_folder
from slipstream_trainer.losses import CISPO_HIGH
from slipstream_trainer.policy import check_adapter

SOURCES = [p for area in ("sdk", "proxy", "judge", "trainer", "engine") for p in (ROOT / area).rglob("*.py")]


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


@pytest.mark.parametrize("folder", ["sdk", "proxy", "judge", "trainer", "engine", "docs", "examples", "deploy"])
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
