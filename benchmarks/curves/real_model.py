"""Make the larger model: python benchmarks/curves/real_model.py OUT --size 0.3b --worlds inbox,retail,mail --seconds 100

A Qwen3-shaped network reads the conversations of clumsy players, in rows of like length side by side, in bf16 with fp32
master weights. The last line of output is one JSON object.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import worlds
from common.making import LESSONS
from common.pretrain import Packed, Row, gather, loss_of, make_network, pack, save

SIZES = {
    "tiny": {"layers": 3, "hidden": 256, "intermediate": 768, "heads": 4},
    "0.1b": {"layers": 12, "hidden": 768, "intermediate": 3072, "heads": 12},
    "0.3b": {"layers": 10, "hidden": 1536, "intermediate": 4608, "heads": 24},
    "0.5b": {"layers": 16, "hidden": 1536, "intermediate": 4608, "heads": 24},
}
"""0.3b: 307 million parameters without the embedding of its small vocabulary. Few and wide layers: what a step costs beside
the arithmetic grows with their number."""
LEARNING_RATES = {"tiny": 2e-3, "0.1b": 1e-3, "0.3b": 5e-4, "0.5b": 4e-4}
WARMUP = 80
LESSON_SHARE = 0.15
"""Of the training's time: the first of it is for lessons alone."""
LONGEST = 2048
PATIENCE = 15.0
"""Seconds after the pre-training that the compiler may still take."""


def batches(rows: Sequence[Row], tokens: int, seed: int) -> list[list[Row]]:
    """Rows of like length together, at most `tokens` padded tokens a batch, the batches shuffled."""
    rng = random.Random(seed)
    ordered = sorted(rows, key=lambda row: (len(row.ids), rng.random()), reverse=True)
    found: list[list[Row]] = []
    for row in ordered:
        if found and len(found[-1][0].ids) * (len(found[-1]) + 1) <= tokens:
            found[-1].append(row)
        else:
            found.append([row])
    rng.shuffle(found)
    return found


def moved(batch: Packed, device: str) -> Packed:
    """On the device; the lengths stay."""
    there = [x if name == "lengths" else x.to(device, non_blocking=True) for name, x in batch._asdict().items()]
    return Packed(*there)


def train(
    model: Any, data: Sequence[Packed], lessons: Sequence[Packed], *, lr: float, seconds: float, device: str
) -> dict[str, float]:
    """Read the batches in turn for so many seconds, the lessons first; the learning rate falls by the clock."""
    model.to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.05, fused=device != "cpu"
    )
    began, steps, tokens, share, loss = time.monotonic(), 0, 0, 0.0, 0.0
    while share < 1:
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (steps + 1) / WARMUP) * max(0.02, 1 - share)
        some = lessons if lessons and share < LESSON_SHARE else data
        batch = moved(some[steps % len(some)], device)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            whole, own = loss_of(model, batch)
        optimizer.zero_grad()
        whole.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps += 1
        tokens += batch.ids.numel()
        share = (time.monotonic() - began) / seconds
        if steps % 50 == 0 or share >= 1:
            loss = own.item()
            print(f"step {steps} own loss {loss:.4f} {tokens / share / seconds:.0f} tokens/s", flush=True)
    return {"steps": steps, "tokens": tokens, "loss": loss, "tokens_per_second": tokens / share / seconds}


@contextmanager
def warming(model: Any, tokenizer: Any, folder: Path, device: str) -> Iterator[None]:
    """Meanwhile another process compiles the trainer's layers for this shape, on a GPU."""
    if device == "cpu":
        yield
        return
    model.to(torch.bfloat16).save_pretrained(folder)
    model.to(torch.float32)
    tokenizer.save_pretrained(folder)
    here = Path(__file__).parent
    path = [str(here.parents[1] / part) for part in ("sdk", "trainer")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)}
    process = subprocess.Popen([sys.executable, str(here / "real_warm.py"), str(folder)], env=env)
    try:
        yield
    finally:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()


def make(
    out: Path,
    names: tuple[str, ...],
    *,
    size: str,
    seconds: float,
    rows: int,
    tokens: int,
    seed: int,
    device: str,
    processes: int | None,
) -> dict[str, Any]:
    """Make rows, train, save. Returns the figures."""
    torch.manual_seed(seed)
    began = time.monotonic()
    tokenizer = worlds.tokenizer_of(names)
    shape = SIZES[size]
    vocabulary = -(-max(len(tokenizer), shape["hidden"] + 1) // 256) * 256  # vLLM takes no LoRA on a smaller one
    with ThreadPoolExecutor(1) as beside:
        making = beside.submit(
            make_network, tokenizer, worlds.words_of(names), **shape,
            positions=LONGEST, vocabulary=vocabulary, reading=True,
        )  # fmt: skip
        made = gather(functools.partial(worlds.rows_of, names), count=rows, seed=seed, processes=processes)
        lessons = functools.partial(worlds.lessons_of, names)
        learned = gather(lessons, count=rows // LESSONS, seed=seed, processes=processes)
        model = making.result()
    print(f"{len(made)} rows and {len(learned)} lessons in {time.monotonic() - began:.0f} s", flush=True)
    data, first = ([pack(batch) for batch in batches(some, tokens, seed)] for some in (made, learned))
    parameters = sum(p.numel() for p in model.parameters())
    ready = time.monotonic() - began
    print(f"{parameters:,} parameters, {len(data)} batches, ready after {ready:.0f} s", flush=True)
    with warming(model, tokenizer, out.with_name(f"{out.name}-untrained"), device):
        figures = train(model, data, first, lr=LEARNING_RATES[size], seconds=seconds, device=device)
        save(model, tokenizer, out)
    return {"parameters": parameters, "data_seconds": ready, **figures, "seconds": time.monotonic() - began}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--worlds", default="inbox,retail,mail")
    parser.add_argument("--size", choices=SIZES, default="0.3b")
    parser.add_argument("--seconds", type=float, default=90.0, help="of training")
    parser.add_argument("--rows", type=int, default=80_000)
    parser.add_argument("--tokens", type=int, default=16384, help="of a batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, help="that make the rows; default: as many as cores")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    figures = make(
        args.out,
        tuple(args.worlds.split(",")),
        size=args.size,
        seconds=args.seconds,
        rows=args.rows,
        tokens=args.tokens,
        seed=args.seed,
        device=args.device,
        processes=args.processes,
    )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
