"""Several GPUs of one machine: the base whole on each (ddp) or a part on each (fsdp2).

    python -m torch.distributed.run --standalone --nproc-per-node=2 benchmarks/trainer/bench_shards.py [--model FOLDER] [--layers 16 --hidden 2048]

The same steps with both; loss and gradient norm of the first step are to be the same. The last line is one JSON object: seconds, tokens/s and peak
memory of the fullest process.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from bench_trainer import episodes, make_model

from slipstream.config import load_config
from slipstream_trainer.guards import Pace
from slipstream_trainer.parallel import leave
from slipstream_trainer.start import start_trainer
from slipstream_trainer.step import memory_mib, train


def measure(sharding: str, model: Path, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    flags = [f"trainer.sharding={sharding}", f"trainer.token_budget={args.budget}", "trainer.max_ratio=1e12", "trainer.max_grad=1e12",
             "trainer.max_kl=1e12", "trainer.learning_rate=1e-6", *args.set]  # fmt: skip
    config = load_config(None, env={}, base={"data_dir": str(folder), "engine": {"model": str(model)}}, flags=flags)
    trainer, _ = start_trainer(config, None)
    if trainer.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    steps = []
    for n in range(args.steps):
        dist.barrier()
        began = time.perf_counter()
        result = train(trainer, episodes(args, "plain"), Pace(), n)
        dist.barrier()
        assert result.outcome == "step", result.reason
        steps.append((time.perf_counter() - began, result.figures))
    peak = torch.tensor(memory_mib(trainer.device) / 1024, device=trainer.device)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    seconds = min(s for s, _ in steps)
    first = steps[0][1]
    found = {"loss": first["loss"], "grad_norm": first["grad_norm"], "seconds": seconds, "first_seconds": steps[0][0],
             "tokens_per_second": first["tokens_computed"] / seconds, "peak_gib": float(peak), "layout": first["layout"]}  # fmt: skip
    del trainer
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", type=Path, help="a folder with weights; default: one is made of --layers and --hidden"
    )
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=1000)
    parser.add_argument("--sampled", type=int, default=200)
    parser.add_argument("--results", type=int, default=200)
    parser.add_argument("--budget", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE")
    args = parser.parse_args()
    rank = int(os.environ["RANK"])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as own:
        from accelerate import PartialState

        state = PartialState(cpu=not torch.cuda.is_available())
        box = [own]
        dist.broadcast_object_list(box, src=0)
        model = args.model or Path(box[0]) / "model"
        if args.model is None and rank == 0:
            make_model(model, args.layers, args.hidden)
        state.wait_for_everyone()
        found = {sharding: measure(sharding, model, Path(own) / sharding, args) for sharding in ("ddp", "fsdp2")}
        state.wait_for_everyone()
        if rank == 0:
            print(json.dumps({"benchmark": "shards", "processes": dist.get_world_size(), **found}))
        leave()
    return 0


if __name__ == "__main__":
    sys.exit(main())
