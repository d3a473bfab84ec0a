"""LoRA's sums in fewer kernels are PEFT's sums."""

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from slipstream_trainer.model.lora_sums import use_sums


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 40), nn.Linear(40, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.nn.functional.silu(self.up(x)))


def made(**more: Any) -> nn.Module:
    torch.manual_seed(0)
    model = get_peft_model(Two(), LoraConfig(r=4, lora_alpha=7, target_modules=["up", "down"], **more))
    for name, p in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(p)
    return model


@pytest.mark.parametrize("autocast", [False, True])
def test_the_sums_and_their_gradients_are_pefts(autocast: bool) -> None:
    plain = made(use_rslora=True)
    ours = copy.deepcopy(plain)
    assert use_sums(ours) == 2
    x = torch.randn(3, 5, 16)
    found = []
    for model in (plain, ours):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = model(x)
        y.float().square().mean().backward()
        found.append([y.detach().float(), *(p.grad for p in model.parameters() if p.requires_grad)])
    for theirs, own in zip(*found, strict=True):
        bound = 0.02 if autocast else 1e-6  # bf16 has eight bits
        assert (own - theirs).abs().max() <= bound * theirs.abs().max()


@pytest.mark.parametrize("more", [{"use_dora": True}, {"lora_dropout": 0.5}, {"lora_bias": True}])
def test_what_peft_computes_otherwise_is_left_to_it(more: dict[str, Any]) -> None:
    assert use_sums(made(**more)) == 0
