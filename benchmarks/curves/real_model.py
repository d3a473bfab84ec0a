"""Make the larger model: python benchmarks/curves/real_model.py OUT --size 0.3b --worlds inbox,retail,mail --seconds 100

A Qwen3-shaped network reads the conversations of clumsy players, in rows of like length side by side, in bf16 with fp32
master weights. The last line of output is one JSON object.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import worlds
from common.making import HELD_OUT_LESSONS
from common.pretrain import Packed, Row, gather, loss_of, make_network, pack, save

SIZES = {
    "tiny": {"layers": 3, "hidden": 256, "intermediate": 768, "heads": 4},
    "0.1b": {"layers": 12, "hidden": 768, "intermediate": 3072, "heads": 12},
    "0.3b": {"layers": 10, "hidden": 1536, "intermediate": 4608, "heads": 24},
    "0.5b": {"layers": 16, "hidden": 1536, "intermediate": 4608, "heads": 24},
}
"""0.3b: 307 million parameters without the embedding of its small vocabulary. Few and wide layers: what a step costs beside
the arithmetic grows with their number."""
LEARNING_RATES = {"tiny": 2e-3, "0.1b": 2e-4, "0.3b": 1e-4, "0.5b": 8e-5}
"""0.3b by measurement: with 5e-4 it does not learn to find what stands beside a thing, with 1e-4 it does within 700 steps
(docs/decisions.md). 0.1b and 0.5b follow it by their width and depth, unmeasured."""
WARMUP = 80
LESSON_SHARE = 0.3
"""Of the training's time: the first of it is for lessons alone. Compiling takes 20 s of it."""
LONGEST = 2048


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


def compiled(model: Any) -> None:
    """Let one compiled layer, for rows of any shape, do the work of all: it reads about twice as fast on a GPU."""
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.suppress_errors = True  # where the compiler cannot, the layers run as they are
    for layer in model.model.layers:
        layer.compile(dynamic=True)


def train(
    model: Any,
    making: Future[list[Packed]],
    lessons: Sequence[Packed],
    *,
    lr: float,
    seconds: float,
    device: str,
    lesson_share: float = LESSON_SHARE,
) -> dict[str, float]:
    """Read the batches in turn for so many seconds, the lessons first; the learning rate falls by the clock.

    The clock stands while the batches are not yet made and the lessons' share is over.
    """
    model.to(device).train()
    if device != "cpu":
        compiled(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.05, fused=device != "cpu"
    )
    steps, of_lessons, tokens, share, loss, losses = 0, 0, 0, 0.0, 0.0, []
    began, late = (now := time.monotonic()), 0.0
    while share < 1:
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (steps + 1) / WARMUP) * max(0.02, 1 - share)
        stands = bool(lessons) and share >= lesson_share and not making.done()
        first = bool(lessons) and (share < lesson_share or stands)
        of_lessons += first
        some = lessons if first else making.result()
        batch = moved(some[steps % len(some)], device)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            whole, own = loss_of(model, batch)
        optimizer.zero_grad()
        whole.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps += 1
        losses.append(own.detach())
        tokens += batch.ids.numel()
        before, now = now, time.monotonic()
        late += stands * (now - before)
        share = (now - began - late) / seconds
        if steps % 50 == 0 or share >= 1:
            loss, losses = torch.stack(losses).mean().item(), []
            print(f"step {steps} own loss {loss:.4f} {tokens / (now - began):.0f} tokens/s", flush=True)
    figures = {"steps": steps, "of_lessons": of_lessons, "tokens": tokens, "loss": loss}
    return figures | {"tokens_per_second": tokens / (now - began)}


def made_on(device: str, *what: Any, **shape: Any) -> Any:
    """``make_network`` on this device: a GPU needs a second where sixteen busy cores need half a minute."""
    with torch.device(device):
        return make_network(*what, **shape)


@torch.no_grad()
def learned(model: Any, names: tuple[str, ...], tokens: int, device: str, count: int = 256) -> dict[str, Any]:
    """Of each world: mean loss on the assistant's own tokens (nats) of conversations and of lessons that were not read."""
    tokenizer = worlds.tokenizer_of(names)
    model.eval()

    def own(rows: Sequence[Row]) -> float:
        packed = [moved(pack(batch), device) for batch in batches(rows, tokens, 0)]
        with torch.compiler.set_stance("force_eager"), torch.autocast(torch.device(device).type, torch.bfloat16):
            losses = [loss_of(model, batch)[1].item() for batch in packed]
        return sum(losses) / len(losses)

    found: dict[str, Any] = {}
    for name in names:
        world = worlds.WORLDS[name]
        found[name] = {"conversations": own(list(world.rows(tokenizer, HELD_OUT_LESSONS, count)))}
        if world.lessons:
            found[name]["lessons"] = own(world.lessons(tokenizer, HELD_OUT_LESSONS, count))
    return found


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
    lr: float | None = None,
    lesson_share: float = LESSON_SHARE,
) -> dict[str, Any]:
    """Make rows, train, save. Returns the figures."""
    torch.manual_seed(seed)
    began = time.monotonic()
    tokenizer = worlds.tokenizer_of(names)
    shape = SIZES[size]
    vocabulary = -(-max(len(tokenizer), shape["hidden"] + 1) // 256) * 256  # vLLM takes no LoRA on a smaller one

    def gathered(some: Callable[[tuple[str, ...], int, int], list[Row]], count: int) -> list[Packed]:
        """That many rows as batches, with the time that they took."""
        found = gather(functools.partial(some, names), count=count, seed=seed, processes=processes)
        packed = [pack(batch) for batch in batches(found, tokens, seed)]
        print(f"{len(found)} rows of {some.__name__} after {time.monotonic() - began:.0f} s", flush=True)
        return packed

    with ThreadPoolExecutor(2) as beside:
        network = beside.submit(
            made_on, device, tokenizer, worlds.words_of(names), **shape,
            positions=LONGEST, vocabulary=vocabulary, reading=True,
        )  # fmt: skip
        first = gathered(worlds.lessons_of, rows // 2)
        making = beside.submit(gathered, worlds.rows_of, rows)
        model = network.result()
        parameters = sum(p.numel() for p in model.parameters())
        ready = time.monotonic() - began
        print(f"{parameters:,} parameters, ready after {ready:.0f} s", flush=True)
        pace = {"lr": lr or LEARNING_RATES[size], "seconds": seconds, "lesson_share": lesson_share}
        figures = train(model, making, first, device=device, **pace)
        save(model, tokenizer, out)
        print(json.dumps({"held_out": (held_out := learned(model, names, tokens, device))}), flush=True)
    figures = {"parameters": parameters, "data_seconds": ready, **figures, "held_out": held_out}
    return figures | {"seconds": time.monotonic() - began}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--worlds", default="inbox,retail,mail")
    parser.add_argument("--size", choices=SIZES, default="0.3b")
    parser.add_argument("--seconds", type=float, default=90.0, help="of training")
    parser.add_argument("--rows", type=int, default=160_000)
    parser.add_argument("--tokens", type=int, default=8192, help="of a batch")
    parser.add_argument("--lr", type=float, help="the highest; default: by the size")
    parser.add_argument(
        "--lesson-share", type=float, default=LESSON_SHARE, help="of the time, at first, for lessons alone"
    )
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
        lr=args.lr,
        lesson_share=args.lesson_share,
    )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
