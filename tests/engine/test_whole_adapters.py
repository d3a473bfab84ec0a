"""An adapter of which vLLM would ignore a part is refused. Adapters that our trainer makes are taken whole."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("vllm")
from tests.support import process, slipstream, vllm, wait_for
from tests.support.adapters import break_adapter
from tests.support.families import make_family
from tests.support.running import Running, run_proxy
from tests.support.tiny import make_config, make_trainer

from slipstream.client import Client
from slipstream.contract import RewardIn
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
        write_adapter(trainer.learner.adapter, tmp_path / f"{family}@1", 16)
        paths += [folder, tmp_path / f"{family}@1"]
    return paths


def spoilt(good: Path) -> list[Path]:
    return [break_adapter(good, good.parent / f"glm4@{kind}", kind) for kind in ("prefix", "layers")]


def answered(proxy: Running, run: int) -> str:
    """A run of one call. → The adapter that answered it."""
    tags = {"x-slipstream-episode": f"r{run}", "x-slipstream-task": f"t{run % 2}"}
    said = {"model": "inbox", "messages": [{"role": "user", "content": "w5 w9 w31"}], "max_tokens": 8}
    reply = httpx.post(f"{proxy.url}/v1/chat/completions", json=said, headers=tags, timeout=60, trust_env=False)
    return str(reply.raise_for_status().headers["x-slipstream-adapter"])


@pytest.mark.engine
@pytest.mark.slow
def test_a_family_of_which_vllm_takes_a_part_goes_through_the_whole_product(tmp_path: Path) -> None:
    """GLM-4: engine, proxy, trainer and swap. Calls, a step, a version that answers; what the plugin refuses."""
    heads = {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
    }  # vLLM's CPU build takes no smaller ones
    model = make_family("glm4", tmp_path / "glm4", **heads)
    own = {"model": str(model), "threads": 1, "min_groups": 2, "max_kl": 1.0}
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(vllm(tmp_path / "engine.log", model=model))
        sections: dict[str, Any] = {"engine": {"model": str(model)}, "groups": {"size": 4}, "trainer": own}
        proxy = stack.enter_context(run_proxy(tmp_path / "proxy", url, **sections))
        client = stack.enter_context(Client(proxy.url))
        argv, log = slipstream("trainer", "--config", str(proxy.config), "--url", proxy.url), tmp_path / "trainer.log"
        stack.enter_context(process(argv, log, {"OMP_NUM_THREADS": "1"}))
        assert [answered(proxy, run) for run in range(8)] == ["inbox"] * 8
        for run in range(8):
            client.add_reward(f"r{run}", RewardIn(value=run / 8))
        wait_for(
            lambda: client.adapters().live["inbox"] == "inbox@1", 240, 0.2, f"a version; {log.read_text()[-2000:]}"
        )
        assert answered(proxy, 8) == "inbox@1"
        good = proxy.data_dir / "adapters" / "inbox@1"
        assert "gate_up_proj" not in (good / "adapter_config.json").read_text()
        for broken in spoilt(good):
            asked = {"lora_name": broken.name, "lora_path": str(broken)}
            reply = httpx.post(f"{url}/v1/load_lora_adapter", json=asked, timeout=60, trust_env=False)
            assert reply.status_code >= 400 and "no layer for 10 of the adapter's 10" in reply.text


@pytest.mark.engine
@pytest.mark.slow
def test_vllm_takes_what_is_trained(tmp_path: Path) -> None:
    found = answers(made(FAMILIES, tmp_path), None)
    assert [found[f"{family}@1"] for family in FAMILIES] == [None] * len(FAMILIES)


@pytest.mark.engine
@pytest.mark.slow
def test_vllm_alone_ignores_what_has_no_place(tmp_path: Path) -> None:
    paths = made(["glm4"], tmp_path)
    alone = answers([*paths, *(broken := spoilt(tmp_path / "glm4@1"))], "")
    assert alone["glm4@1"] is None
    assert all(str(alone[b.name]).startswith("ignored:") for b in broken), "vLLM refuses it: the plugin's part can go"
