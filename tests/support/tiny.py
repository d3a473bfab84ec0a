"""A tiny random model with a tokenizer, and batches of made-up samples."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np

from slipstream.config import Config, load_config
from slipstream_trainer.batch.rows import Sample

if TYPE_CHECKING:
    import torch

VOCAB = 64


def make_model(folder: Path, **changes: Any) -> Path:
    """Qwen3-shaped, two layers, random weights large enough that prefixes matter."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 4096, "tie_word_embeddings": True, "initializer_range": 0.3,
        "eos_token_id": 1, "pad_token_id": 0,
    }  # fmt: skip
    torch.manual_seed(7)
    model = Qwen3ForCausalLM(Qwen3Config(**(shape | changes)))
    model.save_pretrained(folder)
    add_tokenizer(folder)
    return folder


def add_tokenizer(folder: Path) -> None:
    """One word a token, and a template that takes no tools."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<end>": 1, "<unk>": 2} | {f"w{i}": i for i in range(3, VOCAB)}
    raw = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<end>", unk_token="<unk>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }} {{ m.content }} <end> {% endfor %}{% if add_generation_prompt %}assistant {% endif %}"
    tokenizer.save_pretrained(folder)


def make_config(model: Path, data: Path, **trainer: Any) -> Config:
    # a model of random weights moves far in a step, and sampled none of the tokens: most tests are not about that
    settings = {
        "threads": 1,
        "lora_rank": 8,
        "learning_rate": 1e-2,
        "max_kl": 1.0,
        "max_engine_kl": 1e6,
        "max_ratio": 1e6,
        "beta_share": 1.0,
    } | trainer
    return load_config(
        None, env={}, base={"data_dir": str(data), "engine": {"model": str(model), "name": "tiny"}, "trainer": settings}
    )


def make_trainer(config: Config, warm: bool = True) -> Any:
    """``warm``: LoRA's B is not zero, so that adapter on and off differ and every weight has a gradient."""
    import torch

    from slipstream_trainer.model.policy import load_policy
    from slipstream_trainer.model.shards import shard_base
    from slipstream_trainer.step.trainer import CapturedGRPOTrainer

    torch.set_num_threads(1)
    model, tokenizer = load_policy(config)
    if config.trainer.sharding == "fsdp2":
        shard_base(model)
    trainer = CapturedGRPOTrainer(model, tokenizer, config, config.root / "trainer")
    if warm:
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for name, p in trainer.model.named_parameters():
                if "lora_B" in name:
                    p.copy_(torch.randn(p.shape, generator=generator) * 0.1)
    return trainer


def tokens(random: np.random.Generator, n: int) -> np.ndarray:
    return random.integers(3, VOCAB, n).astype(np.int32)


def sample(episode: str, prompt: Any, completion: Any, **changes: Any) -> Sample:
    p, c = np.asarray(prompt, dtype=np.int32), np.asarray(completion, dtype=np.int32)
    fields: dict[str, Any] = {
        "group": "g", "kind": "task", "episode": episode, "call": f"{episode}-0", "number": 0, "choice": 0, "prompt_P": p, "completion_C": c,
        "logprobs_C": np.full(len(c), -4.0, dtype=np.float32), "reward": 0.0,
    }  # fmt: skip
    return Sample(**(fields | changes))


def conversation(
    seed: int = 0, groups: int = 2, episodes: int = 3, turns: int = 3, temperatures: bool = True, likely: bool = True
) -> list[Sample]:
    """Groups that share a prompt; each turn is sampled tokens, then tool results; every other episode loses its middle (thinking stripped)."""
    random = np.random.default_rng(seed)
    system, found = tokens(random, 12), []
    for g in range(groups):
        question = np.concatenate([system, tokens(random, 5)])
        for e in range(episodes):
            name, history = f"g{g}e{e}", question
            for n in range(turns):
                said = tokens(random, int(random.integers(2, 7)))
                found.append(
                    sample(
                        name, history, said, group=f"g{g}", call=f"{name}-{n}", number=n,
                        reward=float(random.random()) if n == 0 else found[-1].reward,
                        temperature=(1.0, 0.7, 1.3)[n % 3] if temperatures else 1.0,
                        logprobs_C=(-4.0 + random.normal(size=len(said)) * 0.5).astype(np.float32),
                    )
                )  # fmt: skip
                kept = said[1:] if e % 2 and n == 1 else said
                history = np.concatenate([history, kept, tokens(random, 4)])
    return found


def with_words() -> list[Sample]:
    """A batch in which a user said something about two replies."""
    turn = 2  # the id of what the template begins a reply with
    found = conversation(6)
    return [
        replace(s, prompt_P=np.append(s.prompt_P, np.int32(turn)), hint="w5 w6" if i < 2 else None)
        for i, s in enumerate(found)
    ]


def table(samples: list[Sample]) -> Any:
    """As ``batches/lease`` gives it."""
    import pyarrow as pa

    def column(name: str, kind: pa.DataType) -> Any:
        return pa.array([getattr(s, name) for s in samples], kind)

    lists = {
        "prompt_ids": ("prompt_P", pa.int32()),
        "completion_ids": ("completion_C", pa.int32()),
        "logprobs": ("logprobs_C", pa.float32()),
    }
    columns = {n: pa.array([getattr(s, a).tolist() for s in samples], pa.list_(t)) for n, (a, t) in lists.items()}
    columns |= {n: column(n, pa.string()) for n in ("group", "kind", "episode", "call", "adapter", "key", "tags")}
    columns |= {n: column(n, pa.int32()) for n in ("number", "choice", "staleness")}
    columns |= {"task": pa.array([s.group for s in samples]), "temperature": column("temperature", pa.float32())}
    columns |= {"trainable": column("trainable", pa.bool_()), "untrainable_reason": column("reason", pa.string())}
    columns |= {"reward": column("reward", pa.float64()), "call_reward": column("call_reward", pa.float64())}
    columns |= {"filter": column("filter", pa.list_(pa.float32()))}
    return pa.table(columns)


def gradients(trainer: Any) -> dict[str, Any]:
    return {n: p.grad.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad}


def apart(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Relative distance of two gradients."""
    import torch

    x, y = torch.cat([a[n].flatten() for n in sorted(a)]), torch.cat([b[n].flatten() for n in sorted(a)])
    return float((x - y).norm() / y.norm().clamp(min=1e-12))


def adapter_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The trainable weights by name, detached copies on the CPU."""
    return {n: p.detach().to("cpu", copy=True) for n, p in model.named_parameters() if p.requires_grad}
