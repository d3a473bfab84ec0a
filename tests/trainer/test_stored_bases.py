"""Base models whose files are quantised: trained through with the same weights, or refused in words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.stored import quantization, stored
from tests.support.tiny import make_config
from transformers import AutoModelForCausalLM

from slipstream.errors import ConfigError, StartError
from slipstream_trainer.model.policy import as_plain, load_policy


@pytest.mark.parametrize("kind", ["fp8", "compressed-tensors"])
def test_a_base_in_eight_bits_is_trained_through_with_its_own_weights(tiny: Path, tmp_path: Path, kind: str) -> None:
    if kind == "compressed-tensors":
        pytest.importorskip("compressed_tensors")
    model, _ = load_policy(make_config(stored(tiny, tmp_path / "m", kind), tmp_path))
    plain = load_file(tiny / "model.safetensors")
    found = {
        n.removeprefix("base_model.model."): p for n, p in model.named_parameters() if n.endswith("base_layer.weight")
    }
    assert len(found) == 14
    for name, weight in found.items():
        before = plain[name.replace(".base_layer", "")]
        assert weight.dtype == torch.float32
        assert 0 < float((weight - before).abs().max()) < 0.05 * float(before.abs().max()), (
            "as rounded as eight bits are"
        )
    model(input_ids=torch.tensor([[3, 4, 5]])).logits.sum().backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "lora_B" in n)


def test_what_the_engine_rounds_in_its_inputs_keeps_no_gradient_back(tiny: Path, tmp_path: Path) -> None:
    """As of FP8-dynamic and INT8 models: the gradients are those of a plain model with the same weights."""
    pytest.importorskip("compressed_tensors")
    rounded = stored(tiny, tmp_path / "m", "compressed-tensors")
    described = json.loads((rounded / "config.json").read_text())
    inputs = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
    described["quantization_config"]["config_groups"]["group_0"]["input_activations"] = inputs
    (rounded / "config.json").write_text(json.dumps(described))
    model, _ = load_policy(make_config(rounded, tmp_path))
    weights = {n.replace(".base_layer", ""): p for n, p in model.get_base_model().named_parameters() if "lora" not in n}
    shutil.copytree(tiny, tmp_path / "plain")
    save_file({n: p.detach().contiguous() for n, p in weights.items()}, tmp_path / "plain" / "model.safetensors")
    plain, _ = load_policy(make_config(tmp_path / "plain", tmp_path))
    ids = torch.tensor([[3, 4, 5, 6]])
    for one in (model, plain):
        one(input_ids=ids, labels=ids).loss.backward()
    found = dict(model.named_parameters())
    assert all(
        torch.allclose(found[n].grad, p.grad, rtol=1e-4, atol=1e-7)
        for n, p in plain.named_parameters()
        if p.requires_grad
    )
    assert all(found[n].grad.any() for n in found if "lora_B" in n)


def test_a_layer_that_passes_no_gradient_is_refused(tiny: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny)
    layer = model.model.layers[0].mlp.down_proj
    layer.forward = torch.no_grad()(layer.forward)
    with pytest.raises(StartError, match=r"no gradient passes through model.layers.0.mlp.down_proj"):
        as_plain(model)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("awq", "is stored as awq, and can't be trained through: set trainer.model to the unquantised model"),
        ("gptq", "is stored as gptq, and can't be trained through: set trainer.model to the unquantised model"),
        pytest.param(
            "bitsandbytes", "is stored as bitsandbytes, which needs a GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="it has a GPU"),
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_through_is_refused_in_words(tiny: Path, tmp_path: Path, kind: str, says: str) -> None:
    shutil.copytree(tiny, tmp_path / "m")
    described = json.loads((tmp_path / "m" / "config.json").read_text())
    described["quantization_config"] = quantization(kind, 16)
    (tmp_path / "m" / "config.json").write_text(json.dumps(described))
    with pytest.raises(ConfigError, match=says):
        load_policy(make_config(tmp_path / "m", tmp_path))


def test_a_quantised_base_is_not_quantised_again(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream_trainer.model.policy.check_quantize", lambda _: None)
    config = make_config(stored(tiny, tmp_path / "m", "fp8"), tmp_path, quantize="4bit")
    with pytest.raises(ConfigError, match=r"stored as fp8: set trainer.quantize = 'none'"):
        load_policy(config)
