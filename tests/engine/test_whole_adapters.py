"""An adapter of which vLLM would ignore a part is refused. Adapters that our trainer makes are taken whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("vllm")
from tests.support.adapters import break_adapter
from tests.support.families import make_family
from tests.support.tiny import make_config, make_trainer

from slipstream.engines.vllm.command import _cpu_env
from slipstream_trainer.versions.adapter_folder import write_adapter
from slipstream_vllm.whole_adapters import without_place

FAMILIES = ("qwen3_moe", "mixtral", "deepseek_v3", "glm4_moe", "glm4")


def test_layers_without_a_place() -> None:
    modules, packed = (
        {"model.layers.0.qkv_proj", "model.layers.0.o_proj"},
        {"model.layers.0.qkv_proj": ["model.layers.0.q_proj"]},
    )
    good = ["model.layers.0.q_proj", "model.layers.0.o_proj", "model.layers.0.o_proj.base_layer"]
    assert without_place(good, modules, packed) == []
    assert without_place([*good, "model.layers.7.o_proj"], modules, packed) == ["model.layers.7.o_proj"]


def answers(paths: Sequence[Path], plugins: str | None) -> dict[str, str | None]:
    """What vLLM's LoRA manager says of each adapter, in a process of its own."""
    env = os.environ | _cpu_env() | ({} if plugins is None else {"VLLM_PLUGINS": plugins})
    command = [sys.executable, "-m", "tests.support.lora_manager", *map(str, paths)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found: dict[str, str | None] = json.loads(ran.stdout.splitlines()[-1])
    return found


def made(families: Sequence[str], tmp_path: Path) -> list[Path]:
    """A model of each family, each with an adapter that the trainer wrote."""
    paths = []
    for family in families:
        folder = make_family(family, tmp_path / family)
        trainer = make_trainer(make_config(folder, tmp_path / "d" / family))
        write_adapter(trainer.model, tmp_path / f"{family}@1", 16)
        paths += [folder, tmp_path / f"{family}@1"]
    return paths


def spoilt(tmp_path: Path) -> list[Path]:
    return [break_adapter(tmp_path / "glm4@1", tmp_path / f"glm4@{kind}", kind) for kind in ("prefix", "layers")]


@pytest.mark.engine
@pytest.mark.parametrize("families", [FAMILIES[-2:], pytest.param(FAMILIES[:-2], marks=pytest.mark.slow)], ids=len)
def test_vllm_takes_what_is_trained(tmp_path: Path, families: Sequence[str]) -> None:
    paths = made(families, tmp_path)
    broken = spoilt(tmp_path) if "glm4" in families else []
    found = answers([*paths, *broken], None)
    assert [found[f"{family}@1"] for family in families] == [None] * len(families)
    for path in broken:
        assert "no layer for 10 of the adapter's 10" in str(found[path.name])


@pytest.mark.engine
@pytest.mark.slow
def test_vllm_alone_ignores_what_has_no_place(tmp_path: Path) -> None:
    paths = made(["glm4"], tmp_path)
    alone = answers([*paths, *(broken := spoilt(tmp_path))], "")
    assert alone["glm4@1"] is None
    assert all(str(alone[b.name]).startswith("ignored:") for b in broken), "vLLM refuses it: the plugin's part can go"
