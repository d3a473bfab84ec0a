"""A dense model of 7B with random weights, for rows of ``bench_models.py --whole --model FOLDER`` on a GPU.

    python -m benchmarks.models.large FOLDER         in bf16; QLoRA with --set trainer.quantize=4bit
    python -m benchmarks.models.large FOLDER fp8     with the weights of its layers in FP8, by blocks, as Qwen has them

Its shape is Qwen2.5-7B's, whose chat template it has. A character is a token, and no token has another text.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from benchmarks.models.speakers import end_of, template_of, tokenizer_of
from tests.support.stored import stored

from slipstream.engines.vllm.template import run

SHAPE: dict[str, Any] = {
    "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
    "max_position_embeddings": 32_768, "rope_theta": 1e6,
}  # fmt: skip
BLOCK = 128
"""Of both sides of a weight, for one scale: what vLLM's kernels take."""


def make(folder: Path, store: str | None = None, shape: dict[str, Any] | None = None) -> None:
    """Write it, on the GPU where there is one."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    template = template_of("qwen2_5")
    tokenizer = tokenizer_of(template, run(template))
    tokenizer.eos_token = end_of(tokenizer)
    shape = shape or SHAPE
    # vLLM's LoRA takes no vocabulary that is smaller than the hidden size
    tokenizer.add_tokens([f"<{n}>" for n in range(len(tokenizer), shape["hidden_size"])])
    described = Qwen2Config(
        vocab_size=len(tokenizer), tie_word_embeddings=False, bos_token_id=None, pad_token_id=0, eos_token_id=tokenizer.eos_token_id,
        **shape,
    )  # fmt: skip
    torch.manual_seed(7)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen2ForCausalLM._from_config(described, dtype=torch.bfloat16)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        plain = Path(place) / "plain"
        model.save_pretrained(plain, max_shard_size="100GB")
        tokenizer.save_pretrained(plain)
        if store:
            stored(plain, folder, store, BLOCK)
        else:
            plain.rename(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]), next(iter(sys.argv[2:]), None))
