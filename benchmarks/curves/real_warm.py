"""Compile the trainer's layers for a model's shape: python benchmarks/curves/real_warm.py MODEL

What it leaves is in the compiler's caches, so that a trainer of the same shape is ready sooner. It runs beside the
pre-training, which needs the GPU's arithmetic and little of the CPU.
"""

from __future__ import annotations

import sys
import tempfile
import time

from slipstream.config import load_config
from slipstream_trainer.policy import load_policy
from slipstream_trainer.selfcheck import check_packing
from slipstream_trainer.trainer import CapturedGRPOTrainer
from slipstream_trainer.warmup import warm_up


def main() -> None:
    """Command line."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        base = {"data_dir": folder, "engine": {"model": sys.argv[1], "name": "real"}}
        config = load_config(None, env={}, base=base)
        model, tokenizer = load_policy(config)
        trainer = CapturedGRPOTrainer(model, tokenizer, config, config.root / "trainer")
        check_packing(trainer)
        took = warm_up(trainer)
    print(f"compiled for {took} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
