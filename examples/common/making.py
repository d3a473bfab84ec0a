"""The command line that makes a task's small model: read transcripts, train, write the weights, and measure them.

    RECIPE = Recipe(make_tokenizer, WORDS, make_rows, figures_of, rows=100_000, steps=3000)
    main(__doc__, RECIPE)

Weights and their order come from the seed. The last line of output is JSON: the size, the last loss, and the figures.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from common.pretrain import Row, gather, make_network, pack, save, train

__all__ = ["HELD_OUT_LESSONS", "LESSONS", "Recipe", "chance_of_right", "main", "options"]

LESSONS = 4
"""One row in so many is a lesson beside the transcripts, too: from them alone a small model forgets what lessons taught."""
HELD_OUT_LESSONS = 1_000_000_007
"""Seed of the first lessons that no recipe reads, to measure with."""


@dataclass(frozen=True)
class Recipe:
    """What one task's model is made of. The numbers are the defaults of the command line."""

    tokenizer: Callable[[], PreTrainedTokenizerFast]
    words: Callable[[], Iterable[str]]
    make_rows: Callable[[int, int], list[Row]]
    """`make_rows(seed, count)`: transcripts to read. A function of a module: other processes call it."""
    figures: Callable[[Any, PreTrainedTokenizerFast, int, int], dict[str, float]]
    """`figures(model, tokenizer, seed, count)`: what the model does with `count` held-out items."""
    rows: int
    steps: int
    batch: int = 512
    seconds: float = float("inf")
    layers: int = 3
    intermediate: int = 512
    positions: int = 1024
    measure: int = 1000
    finding: bool = False
    """The network begins with heads that find what stands behind a token."""
    reading: bool = False
    """And with heads that find what stands near two tokens."""
    lessons: Callable[[int, int], list[Row]] | None = None
    """As `make_rows`: what is read before the transcripts, for a skill that they alone teach too slowly."""
    lesson_rows: int = 0
    lesson_steps: int = 0
    lesson_seconds: float = float("inf")


@torch.no_grad()
def chance_of_right(model: Any, rows: Sequence[Row]) -> float:
    """Mean chance that the model gives all that is right, over the places of the rows that have soft targets."""
    found = []
    for row in rows:
        logits = model(torch.tensor([row.ids], device=model.device)).logits[0].float().cpu()
        found += [logits[place - 1].softmax(-1)[list(chances)].sum().item() for place, chances in row.soft]
    return sum(found) / len(found)


def options(about: str | None, recipe: Recipe) -> argparse.ArgumentParser:
    """The command line, with the recipe's numbers as defaults."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=recipe.rows, help="transcripts to read")
    parser.add_argument("--steps", type=int, default=recipe.steps)
    parser.add_argument("--seconds", type=float, default=recipe.seconds, help="of training, at most")
    parser.add_argument("--batch", type=int, default=recipe.batch)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--layers", type=int, default=recipe.layers)
    parser.add_argument("--intermediate", type=int, default=recipe.intermediate)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="torch's; default: as many as it likes")
    parser.add_argument("--processes", type=int, help="that make the rows; default: as many as cores")
    parser.add_argument("--lesson-rows", type=int, default=recipe.lesson_rows, help="read before the transcripts")
    parser.add_argument("--lesson-steps", type=int, default=recipe.lesson_steps)
    parser.add_argument("--lesson-seconds", type=float, default=recipe.lesson_seconds, help="of them, at most")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--measure", type=int, default=recipe.measure, help="held-out items to measure with")
    return parser


def read(
    model: Any,
    make: Callable[[int, int], list[Row]],
    args: argparse.Namespace,
    count: int,
    steps: int,
    seconds: float,
) -> list[float]:
    """Make so many rows and train on them. → The losses that were printed."""
    began = time.monotonic()
    rows = gather(make, count=count, seed=args.seed, processes=args.processes)
    data = pack(rows, args.device)
    print(f"{len(rows)} rows of up to {data.ids.shape[1]} tokens in {time.monotonic() - began:.0f} s", flush=True)
    return train(model, data, steps=steps, batch=args.batch, lr=args.lr, seed=args.seed, seconds=seconds)


def main(about: str | None, recipe: Recipe) -> None:
    """Train, write the model in bf16 with its tokenizer to OUT, and print what it does."""
    args = options(about, recipe).parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    tokenizer = recipe.tokenizer()
    shape = {"layers": args.layers, "intermediate": args.intermediate, "positions": recipe.positions}
    model = make_network(tokenizer, recipe.words(), finding=recipe.finding, reading=recipe.reading, **shape)
    size = sum(p.numel() for p in model.parameters())
    print(f"{size:,} parameters, {len(tokenizer)} tokens", flush=True)
    if recipe.lessons and args.lesson_steps:
        read(model, recipe.lessons, args, args.lesson_rows, args.lesson_steps, args.lesson_seconds)
    curve = read(model, recipe.make_rows, args, args.rows, args.steps, args.seconds)
    save(model, tokenizer, args.out)
    model.to(dtype=torch.bfloat16)
    figures = recipe.figures(model, tokenizer, args.seed, args.measure)
    print(json.dumps({"parameters": size, "loss": curve[-1], **figures}))
