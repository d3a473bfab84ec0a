"""What merging and prefix trees spare, on a small model on the CPU: python -m benchmarks.trainer.bench_trainer [--turns 6] [--prompt 1500] …

Groups of episodes of several turns behind one shared prompt, laid out as: stock TRL with a sample for every call, stock TRL with merged rows, ours
merged, ours as trees, ours as chosen by itself. Tokens computed, seconds of a forward and backward pass (best of --repeat), peak memory, each
in a process of its own. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from benchmarks.harness import report
from datasets import Dataset

from slipstream.config import Config, load_config
from slipstream_trainer.algorithm.advantage import assign
from slipstream_trainer.batch.layout import Layout, make_plan
from slipstream_trainer.batch.rows import Sample, merge_chains
from slipstream_trainer.model.policy import load_policy
from slipstream_trainer.model.torch_learner import CPU_MICRO
from slipstream_trainer.step.trainer import CapturedGRPOTrainer
from slipstream_trainer.step.trl_seam import GRPOTrainer, grpo_config

VOCAB = 512


def save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.WordLevel({"<pad>": 0, "<end>": 1, "<unk>": 2}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<end>", unk_token="<unk>").save_pretrained(folder)  # fmt: skip


def make_model(folder: Path, layers: int, hidden: int) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    heads = max(2, hidden // 64)
    shape = Qwen3Config(
        vocab_size=VOCAB, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2), head_dim=64, max_position_embeddings=32_768, tie_word_embeddings=True, initializer_range=0.1,
        eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    Qwen3ForCausalLM(shape).save_pretrained(folder)
    save_tokenizer(folder)


def episodes(args: argparse.Namespace, form: str) -> list[Sample]:
    """``plain``: the history grows. ``stripped``: half of each earlier reply (the thinking) is taken out. ``compacted``: after half of
    the turns the history becomes a summary."""
    random = np.random.default_rng(getattr(args, "seed", 0))

    def some(n: int) -> np.ndarray:
        return random.integers(3, VOCAB, n).astype(np.int32)

    out = []
    for g in range(args.groups):
        root = some(args.prompt)
        for e in range(args.episodes):
            kept, reward = [root], float(random.random())
            for n in range(args.turns):
                if form == "compacted" and n == args.turns // 2:
                    kept = [root, some(args.sampled)]
                said = some(args.sampled)
                out.append(
                    Sample(f"g{g}", "task", f"g{g}e{e}", f"g{g}e{e}c{n}", n, 0, np.concatenate(kept), said, np.full(len(said), -6.0, np.float32), reward)
                )  # fmt: skip
                kept += [said[len(said) // 2 :] if form == "stripped" else said, some(args.results)]
    return out


def timed(what: Any, repeat: int) -> float:
    best = float("inf")
    for _ in range(repeat):
        began = time.perf_counter()
        what()
        best = min(best, time.perf_counter() - began)
    return best


def gradients(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])


class Stock:
    """TRL as it is: rows (ids, mask of sampled tokens), padded, so many a micro-batch. ``checkpointing``: TRL's default."""

    def __init__(self, config: Config, *, checkpointing: bool = False) -> None:
        model, tokenizer = load_policy(config)
        self.trainer = GRPOTrainer(
            model=model, reward_funcs=lambda **_: [0.0], args=grpo_config(config, config.root / "b"), train_dataset=Dataset.from_dict({"prompt": [""]}),
            processing_class=tokenizer,
        )  # fmt: skip
        self.trainer.use_vllm = False
        self.trainer.current_gradient_accumulation_steps = self.trainer.args.steps_per_generation = 1
        if checkpointing:
            base = self.trainer.model.get_base_model()
            base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.trainer.model.train()

    def run(self, rows: list[tuple[np.ndarray, np.ndarray]], rewards: list[float], size: int) -> None:
        trainer, device = self.trainer, self.trainer.accelerator.device
        total = torch.tensor(float(sum(int(m.sum()) for _, m in rows)), device=device)
        trainer.model.zero_grad(set_to_none=True)
        for at in range(0, len(rows), size):
            part = rows[at : at + size]
            first = [int(np.argmax(m)) for _, m in part]
            left, right = max(first), max(len(m) - f for (_, m), f in zip(part, first, strict=True))
            ids, seen = torch.zeros(len(part), left, dtype=torch.long), torch.zeros(len(part), left, dtype=torch.long)
            said, real, sampled = (torch.zeros(len(part), right, dtype=torch.long) for _ in range(3))
            for i, ((x, m), f) in enumerate(zip(part, first, strict=True)):
                ids[i, left - f :], seen[i, left - f :] = torch.from_numpy(x[:f].astype(np.int64)), 1
                n = len(x) - f
                said[i, :n], real[i, :n] = torch.from_numpy(x[f:].astype(np.int64)), 1
                sampled[i, :n] = torch.from_numpy(m[f:].astype(np.int64))
            inputs = {
                "prompt_ids": ids, "prompt_mask": seen, "completion_ids": said, "completion_mask": real, "tool_mask": sampled,
                "advantages": torch.tensor(rewards[at : at + size]),
            }  # fmt: skip
            inputs = {k: v.to(device) for k, v in inputs.items()} | {"num_items_in_batch": total}
            with trainer.accelerator.autocast():
                loss = trainer.compute_loss(trainer.model, inputs)
            loss.backward()


def rows_of(samples: list[Sample], *, merged: bool) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[float]]:
    rows, rewards = [], []
    for chain in merge_chains(samples, per_call=not merged):
        long = samples[chain.samples[-1]]
        ids = np.concatenate([long.prompt_P, long.completion_C])
        mask = np.zeros(len(ids), dtype=np.int64)
        for i in chain.samples:
            s = samples[i]
            mask[len(s.prompt_P) : len(s.prompt_P) + len(s.completion_C)] = 1
        rows.append((ids, mask))
        rewards.append(long.advantage)
    return rows, rewards


def ours(config: Config, samples: list[Sample], layout: Layout, args: argparse.Namespace) -> dict[str, Any]:
    """Our layout of the same episodes. Keeps the gradient in ``gradient-LAYOUT.pt``."""
    model, tokenizer = load_policy(config)
    trainer = CapturedGRPOTrainer(model, tokenizer, config, config.root / "ours")
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) * 0.02)
    plan = make_plan(samples, layout=layout, budget=10**6, micro=CPU_MICRO, costs=trainer.learner.costs)

    def run() -> None:
        work = trainer.start(plan)
        work.behavior_logprobs_T = torch.zeros_like(work.behavior_logprobs_T)
        trainer.backward(work)

    seconds = timed(run, args.repeat)
    torch.save(gradients(trainer.model), config.root / f"gradient-{layout}.pt")
    return {
        "seconds": seconds, "computed": plan.tokens, "tokens_per_call": plan.tokens_per_call, "tokens_merged": plan.tokens_merged, "tokens_tree": plan.tokens_tree,
    }  # fmt: skip


def stock(config: Config, samples: list[Sample], args: argparse.Namespace, *, merged: bool) -> dict[str, Any]:
    rows, rewards = rows_of(samples, merged=merged)
    size = max(1, CPU_MICRO // max(len(x) for x, _ in rows))
    trl = Stock(config)
    seconds = timed(lambda: trl.run(rows, rewards, size), args.repeat)
    return {"seconds": seconds, "computed": sum(len(x) for x, _ in rows)}


def one(settings: dict[str, Any], way: str, form: str, args: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own, for its peak of memory: what was there before the work is taken off."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    config = load_config(None, env={}, base=settings)
    samples = episodes(args, form)
    assign(samples, "std")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if way.startswith("stock"):
        found = stock(config, samples, args, merged=way == "stock_merged")
    else:
        found = ours(config, samples, cast("Layout", way), args)
    return found | {"peak_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


WAYS = ("stock_per_call", "stock_merged", "merged", "tree", "auto")


def measure(args: argparse.Namespace, settings: dict[str, Any], form: str) -> dict[str, Any]:
    found: dict[str, Any] = {"form": form}
    for way in WAYS:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            found[way] = pool.submit(one, settings, way, form, args).result()
        print(form, way, json.dumps({k: float(f"{v:.4g}") for k, v in found[way].items()}), file=sys.stderr, flush=True)
    grads = {way: torch.load(Path(settings["data_dir"]) / f"gradient-{way}.pt") for way in WAYS[2:]}
    mean = grads["merged"].norm()
    found["gradient_error"] = max(float((grads[x] - grads["merged"]).norm() / mean) for x in ("tree", "auto"))
    found["speedup_vs_per_call"] = found["stock_per_call"]["seconds"] / found["auto"]["seconds"]
    found["speedup_vs_merged"] = found["stock_merged"]["seconds"] / found["auto"]["seconds"]
    found |= {k: found["auto"][k] for k in ("tokens_per_call", "tokens_merged", "tokens_tree")}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"groups": 2, "episodes": 8, "turns": 6, "prompt": 375, "sampled": 75, "results": 75}
    for name, value in (sizes | {"layers": 2, "hidden": 128, "repeat": 1}).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--forms", default="plain,stripped,compacted")
    parser.add_argument("--full", action="store_true", help="8 groups, 1.5k shared prompt, 300 + 300 tokens a turn")
    args = parser.parse_args()
    if args.full:
        args.groups, args.prompt, args.sampled, args.results = 8, 1500, 300, 300
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder) / "model", args.layers, args.hidden)
        settings = {
            "data_dir": folder,
            "engine": {"model": f"{folder}/model"},
            "trainer": {"lora_rank": 16, "max_ratio": 1e30, "is_max": 1e-30 + 1.0, "beta": 0.0},
        }
        results = [measure(args, settings, form) for form in args.forms.split(",")]
    first = results[0]
    names = ("tokens_per_call", "tokens_merged", "tokens_tree", "gradient_error", "speedup_vs_per_call", "speedup_vs_merged")  # fmt: skip
    report(
        {n: first[n] for n in names}
        | {"peak_mib": {way: round(first[way]["peak_mib"]) for way in WAYS}}
        | {"groups": args.groups, "prompt": args.prompt, "sampled": args.sampled, "results": args.results}
    )


if __name__ == "__main__":
    main()
