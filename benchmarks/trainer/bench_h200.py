"""A 7B-shaped model on one GPU: python -m benchmarks.trainer.bench_h200 [--groups 8] [--out h200.json]

Groups of 8 episodes × 6 turns behind a 1.5k prompt, 300 sampled tokens a turn, without and with 300 tokens of tool results, by: stock TRL with a sample
for every call, stock TRL with merged rows (both as TRL is by default: gradient checkpointing), ours as chosen by itself. And rows of 8,192 tokens by:
plain PEFT with checkpointing, ours, Unsloth (mode frugal). And a row of 131,072 tokens by ours. Each in a process of its own, so that peaks are its own. Weights are random. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from benchmarks.harness import report
from benchmarks.trainer import bench_trainer as small

from slipstream.config import Config, load_config

SHAPES = {
    "7b": {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944},
    "14b": {"hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "intermediate_size": 13824},
    "32b": {"hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8, "intermediate_size": 27648},
    "tiny": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512},
}  # fmt: skip
VOCAB = 152_064
CONTEXT, LONG = 8192, 131_072
STEPS = 4
"""Of ours that are measured: which rows β looks at is drawn for each."""


def make_model(folder: Path, shape: str) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB, max_position_embeddings=32_768, rms_norm_eps=1e-6, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1,
        use_sliding_window=False, dtype="bfloat16", **SHAPES[shape],
    )  # fmt: skip
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = Qwen2ForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    small.save_tokenizer(folder)


def batch(groups: int, results: int, seed: int = 0) -> list[Any]:
    from slipstream_trainer.algorithm.advantage import assign

    samples = small.episodes(
        SimpleNamespace(groups=groups, episodes=8, turns=6, prompt=1500, sampled=300, results=results, seed=seed),
        "plain",
    )
    for s in samples:
        s.logprobs_C[:] = -np.log(VOCAB) + 1e-5 * seed  # what is drawn for a batch is drawn by them
    assign(samples, "std")
    return samples


def seconds(what: Any) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    what()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def peak() -> float:
    return torch.cuda.max_memory_allocated() / 2**30


def plan_compiled(trainer: Any, samples: list[Any]) -> Any:
    """A batch's plan as it is once compiling has paid: each length is compiled when it first comes up, and no longer than
    its rows need.
    """
    from slipstream_trainer.batch.layout import in_tiles

    if trainer.learner.compiler is not None:
        trainer.learner.compiler.late = False
        trainer.learner.compiler.ready |= {in_tiles(m.tokens) for m in trainer.learner.plan(samples).micro}
    return trainer.learner.plan(samples)


def part_ours(config: Config, args: argparse.Namespace, results: int) -> dict[str, Any]:
    from slipstream_trainer.model.policy import load_policy
    from slipstream_trainer.run.warmup import compute
    from slipstream_trainer.step.trainer import CapturedGRPOTrainer

    model, tokenizer = load_policy(config)
    trainer = CapturedGRPOTrainer(model, tokenizer, config, config.root / "ours")

    def step(groups: int, seed: int = 0) -> dict[str, Any]:
        plan = plan_compiled(trainer, batch(groups, results, seed))
        recomputed = trainer.learner.checkpointing.choose(plan)
        begun: list[Any] = []
        reference = seconds(lambda: begun.append(trainer.start(plan)))
        took = reference + seconds(lambda: trainer.backward(begun[0]))
        return {
            "seconds": took, "reference_seconds": reference, "computed": plan.tokens, "padding": plan.padding, "sampled": plan.scored.tokens, "micro": len(plan.micro), "recomputed": recomputed,
            "kib_token_layer": trainer.learner.checkpointing.whole / 1024, "tokens_per_call": plan.tokens_per_call, "tokens_merged": plan.tokens_merged,
        }  # fmt: skip

    first = step(1)
    compute(trainer.learner, *batch(1, results))  # the pass without gradients, which β needs in some of the steps
    step(args.groups)
    torch.cuda.reset_peak_memory_stats()
    found = [step(args.groups, seed) for seed in range(STEPS)]
    means = {name: sum(f[name] for f in found) / STEPS for name in ("seconds", "reference_seconds")}
    return found[-1] | means | {"first_seconds": first["seconds"], "mode": trainer.learner.mode, "peak_gib": peak()}  # fmt: skip


def part_stock(config: Config, args: argparse.Namespace, results: int, merged: bool) -> dict[str, Any]:
    rows, rewards = small.rows_of(batch(args.groups, results), merged=merged)
    stock = small.Stock(config, checkpointing=True)
    stock.run(rows[: args.rows], rewards[: args.rows], args.rows)
    torch.cuda.reset_peak_memory_stats()
    took = seconds(lambda: stock.run(rows, rewards, args.rows))
    sampled = sum(int(m.sum()) for _, m in rows)
    return {"seconds": took, "computed": sum(len(x) for x, _ in rows), "sampled": sampled, "peak_gib": peak()}


def long_rows(lengths: list[int]) -> list[Any]:
    """Unrelated episodes of one call, two of a group: half prompt, half sampled."""
    from slipstream_trainer.batch.rows import Sample

    random = np.random.default_rng(0)

    def some(half: int) -> np.ndarray:
        return random.integers(3, VOCAB, half).astype(np.int32)

    return [
        Sample(
            f"g{i // 2}", "task", f"e{i}", f"c{i}", 0, 0, some(n // 2), some(n // 2), np.full(n // 2, -np.log(VOCAB), np.float32), float(i % 2)
        )
        for i, n in enumerate(lengths)
    ]  # fmt: skip


def part_context(config: Config, lengths: list[int], before: int = 2) -> dict[str, Any]:
    """Ours over rows of these lengths, after so many passes over them; with mode frugal that is Unsloth."""
    from slipstream_trainer.algorithm.advantage import assign
    from slipstream_trainer.model.policy import load_policy
    from slipstream_trainer.step.trainer import CapturedGRPOTrainer

    model, tokenizer = load_policy(config)
    trainer = CapturedGRPOTrainer(model, tokenizer, config, config.root / "ours")
    samples = long_rows(lengths)
    assign(samples, "std")
    plan = plan_compiled(trainer, samples)

    def run() -> None:
        trainer.backward(trainer.start(plan))

    for _ in range(before):
        recomputed = trainer.learner.checkpointing.choose(plan)
        run()
    torch.cuda.reset_peak_memory_stats()
    took = seconds(run)
    return {"seconds": took, "tokens_per_second": plan.tokens / took, "peak_gib": peak(), "recomputed": recomputed, "mode": trainer.learner.mode, "micro": len(plan.micro)}  # fmt: skip


def part_peft(config: Config, args: argparse.Namespace) -> dict[str, Any]:
    """Plain PEFT: a forward pass with labels, gradient checkpointing, one row of 8,192 tokens at a time."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        config.engine.model, dtype=torch.bfloat16, attn_implementation="sdpa", device_map={"": "cuda"}
    )
    model.config.use_cache = False
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    model.train()
    ids = torch.randint(3, VOCAB, (8, CONTEXT), device="cuda")

    def run() -> None:
        for row in ids:
            with torch.autocast("cuda", torch.bfloat16):
                model(input_ids=row[None], labels=row[None]).loss.backward()

    run()
    torch.cuda.reset_peak_memory_stats()
    took = seconds(run)
    return {"seconds": took, "tokens_per_second": ids.numel() / took, "peak_gib": peak()}


def settings(args: argparse.Namespace, **trainer: Any) -> Config:
    base = {
        "data_dir": f"{args.work}/data", "engine": {"model": f"{args.work}/model"},
        "trainer": {"lora_rank": 16, "lora_alpha": 32, "max_ratio": 1e30} | trainer,
    }  # fmt: skip
    return load_config(None, env={}, base=base, flags=args.set)


PARTS: dict[str, Any] = {
    "per_call": lambda a: part_stock(settings(a, mode="merged"), a, 0, False),
    "merged": lambda a: part_stock(settings(a, mode="merged"), a, 0, True),
    "merged_tools": lambda a: part_stock(settings(a, mode="merged"), a, 300, True),
    "ours": lambda a: part_ours(settings(a), a, 0),
    "ours_tools": lambda a: part_ours(settings(a), a, 300),
    "ours_no_beta": lambda a: part_ours(settings(a, beta=0.0), a, 0),
    "ours_tools_no_beta": lambda a: part_ours(settings(a, beta=0.0), a, 300),
    "peft": lambda a: part_peft(settings(a), a),
    "context": lambda a: part_context(settings(a), [CONTEXT] * 8),
    "frugal": lambda a: part_context(settings(a, mode="frugal", token_budget=CONTEXT), [CONTEXT] * 8),
    "long": lambda a: part_context(settings(a, token_budget=LONG), [LONG, 1024], before=1),
}


def summary(found: dict[str, dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    ours, tools, context = found["ours"], found["ours_tools"], found["context"]
    return {
        "speedup_vs_trl_per_call": found["per_call"]["seconds"] / ours["seconds"],
        "speedup_vs_merged": found["merged"]["seconds"] / ours["seconds"],
        "speedup_vs_merged_tools": found["merged_tools"]["seconds"] / tools["seconds"],
        "beta_costs": ours["seconds"] / found["ours_no_beta"]["seconds"] - 1,
        "beta_costs_tools": tools["seconds"] / found["ours_tools_no_beta"]["seconds"] - 1,
        "tokens_vs_peft": context["tokens_per_second"] / found["peft"]["tokens_per_second"],
        "peak_gib_frugal": found["frugal"]["peak_gib"],
        "tokens_per_second": ours["sampled"] / ours["seconds"],
        "groups": args.groups, "parts": found,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--rows", type=int, default=4, help="rows of a micro-batch of stock TRL")
    parser.add_argument("--shape", choices=SHAPES, default="7b")
    parser.add_argument("--work", default="/tmp/slipstream-h200", help="where the model is made")
    parser.add_argument("--out", type=Path, help="file for the JSON object")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--set", action="append", default=[], help="section.field=value of the configuration")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part == "model":
        return make_model(Path(args.work) / "model", args.shape)
    if args.part:
        small.VOCAB = VOCAB
        print(json.dumps(PARTS[args.part](args)))
        return None
    found: dict[str, dict[str, Any]] = {}
    own = [sys.executable, "-m", "benchmarks.trainer.bench_h200", *sys.argv[1:], "--part"]
    if not (Path(args.work) / "model").exists():
        subprocess.run([*own, "model"], check=True)
    for part in args.parts.split(","):
        done = subprocess.run([*own, part], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            print(f"{part}: exit code {done.returncode}", file=sys.stderr)
            continue
        found[part] = json.loads(done.stdout.splitlines()[-1])
        print(part, json.dumps({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in found[part].items()}), file=sys.stderr, flush=True)  # fmt: skip
    whole = summary(found, args) if found.keys() >= PARTS.keys() - {"long"} else {"parts": found}
    report(whole, args.out)
    return None


if __name__ == "__main__":
    main()
