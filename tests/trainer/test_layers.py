from __future__ import annotations

import torch

from slipstream_trainer.layers import VARIANTS, compile_layers


class Layer(torch.nn.Module):
    """Says how it was compiled, without a compiler."""

    def compile(self, **how) -> None:
        self.how = how


def test_each_layer_is_compiled_for_its_length() -> None:
    layers = [Layer(), Layer()]
    compile_layers(layers)
    assert [layer.how for layer in layers] == [{"dynamic": False}] * 2
    assert torch._dynamo.config.recompile_limit >= VARIANTS
