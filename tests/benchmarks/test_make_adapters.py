"""An adapter of the bench of swaps has one token, whatever it is asked and however its numbers are rounded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.engine.make_adapters import make
from peft import PeftModel
from transformers import Qwen3Config, Qwen3ForCausalLM

SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}


def network(dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    shape: dict[str, Any] = {**SHAPE, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16}
    model: Any = Qwen3ForCausalLM(Qwen3Config(vocab_size=4096, **shape))
    return model.to(dtype).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("adapters")
    for seed in range(1, 9):
        make(SHAPE, made / f"m@{seed}", "base", seed)
    return made


@torch.no_grad()
def said(folder: Path, name: str, dtype: torch.dtype) -> set[int]:
    """The likeliest next tokens after each token of 64 random texts."""
    model = PeftModel.from_pretrained(network(dtype), folder / name)
    texts = torch.randint(4096, (64, 24), generator=torch.Generator().manual_seed(1))
    return set(model(input_ids=texts).logits.argmax(-1).flatten().tolist())


def test_each_adapter_has_one_token_of_its_own(folder: Path) -> None:
    found = [said(folder, f"m@{seed}", torch.float32) for seed in range(1, 9)]
    assert [len(tokens) for tokens in found] == [1] * 8
    assert len(set().union(*found)) == 8


def test_rounding_changes_no_token(folder: Path) -> None:
    assert said(folder, "m@1", torch.bfloat16) == said(folder, "m@1", torch.float32)


def test_the_base_model_has_many() -> None:
    texts = torch.randint(4096, (8, 24), generator=torch.Generator().manual_seed(1))
    assert len(set(network(torch.float32)(input_ids=texts).logits.argmax(-1).flatten().tolist())) > 50
