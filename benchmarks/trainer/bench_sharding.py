"""Two GPUs, one 7B-shaped base: python benchmarks/trainer/bench_sharding.py [--processes 2] [--out sharding.json]

The same batch (groups of 8 episodes × 6 turns behind a 1.5k prompt) with the base whole on each GPU (ddp) and sharded over them (fsdp2): are the gradients equal,
what does a process take, what does it cost? The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import bench_h200 as h200
import bench_trainer as small
import torch


def part(args: argparse.Namespace) -> None:
    from slipstream_trainer.run.process import leave
    from slipstream_trainer.run.start import start_trainer
    from slipstream_trainer.step.step import plan_batch

    small.VOCAB = h200.VOCAB
    trainer, _ = start_trainer(h200.settings(args, sharding=args.part), None)
    found = {}
    for name, groups in (("first", args.groups), ("second", args.groups)):
        plan = plan_batch(trainer, h200.batch(groups, 0))
        found["recomputed"] = trainer.checkpointing.choose(plan)
        torch.cuda.reset_peak_memory_stats()
        found[f"{name}_seconds"] = h200.seconds(lambda plan=plan: trainer.backward(trainer.start(plan)))
    found |= {"sampled": plan.scored.tokens, "computed": plan.tokens, "micro": len(plan.micro), "peak_gib": h200.peak()}
    if trainer.rank == 0:
        torch.save(torch.cat([p.grad.flatten().cpu() for p in trainer.trained]), f"{args.work}/gradient-{args.part}.pt")
        Path(f"{args.work}/{args.part}.json").write_text(json.dumps(found))
    leave()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--shape", choices=h200.SHAPES, default="7b")
    parser.add_argument("--work", default="/tmp/slipstream-sharding", help="where the model is made")
    parser.add_argument("--out", help="file for the JSON object")
    parser.add_argument("--set", action="append", default=[], help="section.field=value of the configuration")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part == "model":
        return h200.make_model(Path(args.work) / "model", args.shape)
    if args.part:
        return part(args)
    own = [__file__, *sys.argv[1:], "--part"]
    if not (Path(args.work) / "model").exists():
        subprocess.run([sys.executable, *own, "model"], check=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={args.processes}"]
    for sharding in ("ddp", "fsdp2"):
        subprocess.run(
            [*torchrun, *own, sharding], check=True, stdout=sys.stderr, env={**os.environ, "OMP_NUM_THREADS": "4"}
        )
    parts = {s: json.loads(Path(f"{args.work}/{s}.json").read_text()) for s in ("ddp", "fsdp2")}
    whole, sharded = (torch.load(f"{args.work}/gradient-{s}.pt") for s in ("ddp", "fsdp2"))
    found = {
        "gradient_error": float((whole - sharded).norm() / whole.norm()), "processes": args.processes, "shape": args.shape, "groups": args.groups,
        "parts": parts, "versions": h200.versions(),
    }  # fmt: skip
    if args.out:
        Path(args.out).write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    return None


if __name__ == "__main__":
    main()
