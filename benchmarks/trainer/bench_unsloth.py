"""Mode frugal (Unsloth) against the closed form: gradients of one batch on a GPU. python benchmarks/trainer/bench_unsloth.py --out FILE

A Qwen2-shaped model with random weights. Three processes compute the LoRA gradients of the same calls with the same
adapter: the closed form of the loss with one plain forward a call, in fp32 on the CPU; the trainer in bf16 without
Unsloth (``merged``); and with it (``frugal``). Rounding to bf16 alone moves ``merged`` away from the closed form, so
that ``frugal`` may be at most twice as far. The exit code is 1 if it is further. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
SHAPE = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
PACKAGES = ("unsloth", "unsloth_zoo", "torch", "transformers", "peft", "trl")
FURTHER = 2.0


def make(folder: Path) -> None:
    import torch
    from tests.support.tiny import VOCAB, add_tokenizer
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(7)
    described = Qwen2Config(vocab_size=VOCAB, initializer_range=0.05, **SHAPE)
    Qwen2ForCausalLM(described).to(torch.bfloat16).save_pretrained(folder)
    add_tokenizer(folder)


def part(name: str, place: Path) -> None:
    """Write this way's loss, log-probabilities and gradients."""
    if name == "frugal":
        import unsloth  # noqa: F401 - before everything that it changes
    import torch
    from tests.support.oracle import flat_loss, plain_logprobs
    from tests.support.tiny import conversation, gradients, make_config, make_trainer

    from slipstream_trainer.algorithm.advantage import assign
    from slipstream_trainer.batch.layout import make_plan

    mode = "frugal" if name == "frugal" else "merged"
    dtype = "float32" if name == "closed form" else "bfloat16"
    trainer = make_trainer(make_config(place / "model", place / name, mode=mode, dtype=dtype, beta=0.0, compile=False))
    adapter = place / "adapter.pt"
    lora = {n: p for n, p in trainer.model.named_parameters() if p.requires_grad}
    if name == "closed form":
        torch.save({n: p.detach().cpu() for n, p in lora.items()}, adapter)
    else:
        given = torch.load(adapter)
        if given.keys() != lora.keys():
            raise SystemExit(f"{name}: other LoRA weights: {sorted(given.keys() ^ lora.keys())[:3]}")
        with torch.no_grad():
            for n, p in lora.items():
                p.copy_(given[n])
    samples = conversation(1, groups=4, episodes=6, turns=4)
    assign(samples, "std")
    plan = make_plan(samples, layout="merged", forest=trainer.forests)
    work = trainer.start(plan)
    loss = trainer.backward(work)
    logprobs = work.policy_logprobs_T.detach().cpu().float()
    if name == "closed form":
        trainer.model.zero_grad(set_to_none=True)
        lp = plain_logprobs(trainer.model, samples).double()
        scored = plan.scored
        weight = work.importance_ratio_T
        value = flat_loss(
            "cispo",
            lp,
            lp.detach(),
            weight,
            torch.from_numpy(scored.advantage_T),
            torch.from_numpy(scored.unit_T),
            high=4.0,
        )
        value.backward()
        loss, logprobs = float(value.detach()), lp.detach().float()
    grads = {n: g.cpu().float() for n, g in gradients(trainer).items()}
    torch.save(
        {"loss": float(loss), "logprobs": logprobs, "gradients": grads, "mode": trainer.mode}, place / f"{name}.pt"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        part(args.part[0], Path(args.part[1]))
        return 0
    import torch
    from tests.support.tiny import apart

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        make(place / "model")
        for name in ("closed form", "merged", "frugal"):
            env = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if name == "closed form" else {})
            subprocess.run([sys.executable, __file__, "--part", name, str(place)], check=True, env=env, cwd=ROOT)
        read = {name: torch.load(place / f"{name}.pt") for name in ("closed form", "merged", "frugal")}
    exact = read.pop("closed form")
    for name, values in read.items():
        found[name] = {
            "mode": values["mode"],
            "loss": values["loss"],
            "gradients_apart": apart(values["gradients"], exact["gradients"]),
            "logprobs_apart": float((values["logprobs"] - exact["logprobs"]).abs().mean()),
        }
    found["loss"] = exact["loss"]
    found["gpu"] = torch.cuda.get_device_name()
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    fits = found["frugal"]["gradients_apart"] <= FURTHER * found["merged"]["gradients_apart"]
    return 0 if fits and found["frugal"]["mode"] == "frugal" else 1


if __name__ == "__main__":
    sys.exit(main())
