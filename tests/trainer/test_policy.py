from __future__ import annotations

import json

import pytest
import torch
from tests.support.families import make_family
from tests.support.tiny import adapter_state, make_config, make_model, make_trainer

from slipstream.errors import ConfigError, StartError
from slipstream_trainer.model.adapter import check_adapter, load_adapter
from slipstream_trainer.model.policy import check_lora, load_policy, takes_trees


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"lora_rank": 17}, "17"), ({"lora_targets": ["q_proj", "lm_head"]}, "lm_head"), ({"lora_targets": []}, "empty"),
        ({"lora_targets": ["embed_tokens"]}, "embed_tokens"),
    ],
)  # fmt: skip
def test_a_lora_that_vllm_would_refuse_is_refused_before_anything_is_loaded(tmp_path, settings, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        check_lora(make_config(tmp_path / "no model here", tmp_path, **settings))


@pytest.mark.skipif(torch.cuda.is_available(), reason="only where there is no GPU")
def test_qlora_needs_a_gpu(tmp_path) -> None:
    with pytest.raises(ConfigError, match="4bit"):
        check_lora(make_config(tmp_path, tmp_path, quantize="4bit"))


def test_no_such_model(tmp_path) -> None:
    with pytest.raises(StartError, match="does not exist: give an existing folder"):
        load_policy(make_config(tmp_path / "none", tmp_path))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"r": 0}, "r = 0"), ({"r": 64}, "rank 64"), ({"use_dora": True}, "DoRA"), ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias"), ({"peft_type": "IA3"}, "IA3"), ({"rank_pattern": {"q_proj": 64}}, "rank_pattern, q_proj: rank 64"),
    ],
)  # fmt: skip
def test_adapters_that_vllm_would_refuse(tmp_path, change, word: str) -> None:
    good = {
        "peft_type": "LORA",
        "r": 16,
        "bias": "none",
        "use_dora": False,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    (tmp_path / "adapter_config.json").write_text(json.dumps(good))
    assert "missing" in check_adapter(tmp_path, 16)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    assert check_adapter(tmp_path, 16) is None
    patterns = {"rank_pattern": {"q_proj": 4}, "alpha_pattern": {"q_proj": 8}}  # vLLM heeds both
    (tmp_path / "adapter_config.json").write_text(json.dumps(good | patterns))
    assert check_adapter(tmp_path, 16) is None
    (tmp_path / "adapter_config.json").write_text(json.dumps(good | change))
    assert word in check_adapter(tmp_path, 16)


@pytest.mark.parametrize("rslora", [False, True])
def test_what_is_trained_is_what_peft_loads(tiny, tmp_path, rslora: bool) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    trainer = make_trainer(make_config(tiny, tmp_path, rslora=rslora))
    trainer.model.save_pretrained(tmp_path / "a")
    assert json.loads((tmp_path / "a" / "adapter_config.json").read_text())["use_rslora"] is rslora
    assert check_adapter(tmp_path / "a", 16) is None
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32), tmp_path / "a")
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        assert torch.allclose(again(input_ids=ids).logits, trainer.model(input_ids=ids).logits, atol=1e-5)


def test_an_adapter_to_start_from(tiny, tmp_path) -> None:
    trainer = make_trainer(make_config(tiny, tmp_path))
    trainer.model.save_pretrained(tmp_path / "a")
    model, _ = load_policy(make_config(tiny, tmp_path, init_adapter=str(tmp_path / "a")))
    for name, weights in adapter_state(model).items():
        assert torch.equal(weights, dict(trainer.model.named_parameters())[name].detach())


def test_an_adapter_that_has_no_place_here_is_refused(tiny, tmp_path) -> None:
    make_trainer(make_config(tiny, tmp_path)).model.save_pretrained(tmp_path / "a")
    few, _ = load_policy(make_config(tiny, tmp_path, lora_targets=["q_proj"]))
    with pytest.raises(ConfigError, match="leaves out .*k_proj.*add them to trainer.lora_targets"):
        load_adapter(few, tmp_path / "a")
    model, _ = load_policy(make_config(make_model(tmp_path / "wider", intermediate_size=96), tmp_path))
    with pytest.raises(StartError, match="not of this model"):
        load_adapter(model, tmp_path / "a")
    with pytest.raises(StartError, match="can't be loaded"):
        load_adapter(model, tmp_path / "none")


def test_the_seed_makes_the_start(tiny, tmp_path) -> None:
    def start(seed: int):
        return adapter_state(load_policy(make_config(tiny, tmp_path, seed=seed))[0])

    a, b, c = start(1), start(1), start(2)
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert any(not torch.equal(a[n], c[n]) for n in a)


def test_what_a_config_leaves_to_chance_is_off(tmp_path) -> None:
    """Seed-OSS ships a dropout of 0.1, in attention and behind it."""
    trainer = make_trainer(make_config(make_family("seed_oss", tmp_path / "m"), tmp_path / "d"))
    trainer.model.train()
    ids = torch.arange(3, 60)[None]
    assert torch.equal(trainer.model(input_ids=ids).logits, trainer.model(input_ids=ids).logits)


def test_sliding_windows_take_no_trees(tmp_path) -> None:
    from transformers import Qwen3Config

    assert takes_trees(Qwen3Config())
    sliding = Qwen3Config(
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        use_sliding_window=True,
        sliding_window=8,
    )
    assert not takes_trees(sliding)
    folder = make_model(
        tmp_path, layer_types=["sliding_attention", "full_attention"], use_sliding_window=True, sliding_window=8
    )
    assert not make_trainer(make_config(folder, tmp_path / "d")).learner.trees
