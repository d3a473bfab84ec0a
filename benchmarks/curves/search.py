"""How well does a task's small model learn with these settings? Playing and training in one process, without a server.

    python benchmarks/curves/search.py words --steps 100 --target-kl 0.003 --set trainer.max_grad_norm=0.5
    python benchmarks/curves/search.py --grid benchmarks/curves/search.txt --limit 560 --jobs 16

Groups, advantages, loss, optimizer and the control of the learning rate are the trainer's own, at its own settings. Episodes
are sampled from the policy with a KV cache (search_sampler.py). The last line is one JSON object: the gain held out, and a
curve of the steps. With --grid it runs the command lines of a file, so many at once, and the last line has all their gains.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("", "examples", "benchmarks/curves", "sdk", "proxy", "judge", "trainer", "engine")
sys.path[:0] = [str(ROOT / part) for part in PACKAGES]

import torch
from common.task import load_task
from search_grid import run_all
from search_run import SHORTCUTS, STARTS, Search, rounded

from slipstream.config import Config, load_config
from slipstream_trainer.algorithm import learning_rate


def configured(args: argparse.Namespace, folder: str) -> Config:
    """The defaults, the task's model, and what the command line sets. On a GPU rows are merged, so nothing is compiled."""
    given = {name: value for name in SHORTCUTS if (value := getattr(args, name)) is not None}
    base = {
        "data_dir": folder,
        "engine": {"model": str(load_task(args.task).model), "name": args.task},
        "trainer": {
            "mode": "merged" if torch.cuda.is_available() else "auto",
            "seed": args.seed,
            "threads": args.threads,
            **given,
        },
    }
    return load_config(None, env={}, flags=args.set, base=base)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """`given`: words of a command line; None: this process's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=sorted(STARTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which it ends early")
    parser.add_argument(
        "--deadline", type=float, default=float("inf"), help="by the clock (UTC), in seconds since 1970"
    )
    parser.add_argument("--groups", type=int, default=10, help="that end while a step runs; bounded by the trainer's")
    parser.add_argument("--size", type=int, default=8, help="runs of a group")
    parser.add_argument("--stale", type=int, default=0, help="versions that the sampling policy is behind")
    parser.add_argument(
        "--stumble", type=float, default=0.0, help="chance that a training reply does not end where it would"
    )
    parser.add_argument("--informative", action="store_true", help="play on until so many groups have unequal rewards")
    parser.add_argument("--leave-out-cut", action="store_true", help="do not train on replies that were cut off")
    parser.add_argument("--held-out", type=int, default=256, help="items of a measurement")
    parser.add_argument("--every", type=int, default=10, help="steps between measurements")
    parser.add_argument(
        "--then",
        action="append",
        default=[],
        metavar="STEP:NAME=VALUE",
        help="an option or a trainer's setting, from that step on",
    )
    parser.add_argument("--average", action="store_true", help="measure the mean of the last versions, too")
    parser.add_argument(
        "--agreement", type=int, default=0, help="batches by which the gradient's noise is measured, too"
    )
    for name in SHORTCUTS:
        parser.add_argument(f"--{name.replace('_', '-')}", help=f"trainer.{name}")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE")
    parser.add_argument(
        "--constant", action="append", default=[], metavar="NAME=NUMBER", help="of the learning rate's control"
    )
    parser.add_argument("--device", choices=("auto", "cpu"), default="auto", help="auto: a GPU where there is one")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="tell every step")
    parser.add_argument("--grid", type=Path, help="a file with a command line in each line")
    parser.add_argument("--only", action="append", default=[], help="of --grid: lines that hold this text")
    parser.add_argument("--jobs", type=int, default=16, help="of --grid: processes at once")
    parser.add_argument("--limit", type=float, default=560.0, help="of --grid: seconds after which all has ended")
    parser.add_argument("--out", type=Path, default=Path("search"), help="of --grid: folder for the curves")
    words = list(sys.argv[1:] if given is None else given)
    args = parser.parse_args(words)
    if not (args.task or args.grid):
        parser.error("name a task, or a file with --grid")
    args.given = " ".join(words)
    return args


def main() -> int:
    args = arguments()
    if args.grid:
        return run_all(args.grid, args.only, jobs=args.jobs, limit=args.limit, out=args.out)
    if args.device == "cpu":
        torch.cuda.is_available = lambda: False
    torch.set_num_threads(args.threads)
    for name, value in (constant.split("=") for constant in args.constant):
        if not hasattr(learning_rate, name):
            raise SystemExit(f"--constant {name}: slipstream_trainer.algorithm.learning_rate has none of this name")
        setattr(learning_rate, name, float(value))
    with tempfile.TemporaryDirectory(prefix="slipstream-search-") as folder:
        print(json.dumps(rounded(Search(args, configured(args, folder)).run())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
