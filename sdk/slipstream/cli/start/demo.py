from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from pathlib import Path
from typing import Any

from slipstream.cli.common import add_config, finite
from slipstream.errors import StartError
from slipstream.shared.log import setup_logging


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--task", default="inbox", metavar="NAME", help="a folder of examples/ in a checkout; default: inbox"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="keep everything running at the end")
    parser.add_argument("--data-dir", type=Path, default=Path("slipstream-data/demo"))
    add_config(parser)
    parser.add_argument("--time-limit", type=finite, help="seconds of training after the first step")
    parser.add_argument(
        "--steps", type=int, help="stop after this many steps, or at --time-limit, however good the agent is"
    )
    parser.add_argument(
        "--no-reward", action="store_true", help="the agent posts no reward: a judge (judge.model) has to score"
    )
    parser.add_argument("--axis", choices=("version", "time"), default="version", help="the plot's horizontal axis")
    parser.add_argument("--verbose", action="store_true", help="also print the logs of all parts")


def run(args: argparse.Namespace) -> int:
    setup_logging("warning")
    demo = load_demo()
    options = demo.Options(
        seed=args.seed,
        keep=args.keep,
        data_dir=args.data_dir,
        flags=args.set,
        config=args.config,
        time_limit=args.time_limit or demo.TIME_LIMIT,
        steps=args.steps,
        post_reward=not args.no_reward,
        verbose=args.verbose,
        task=args.task,
        axis=args.axis,
    )
    result: int = asyncio.run(demo.demo(options))
    return result


def load_demo() -> Any:
    """The demo's module. It is one of the examples, beside the sources or inside an installed wheel, whose files import
    their own packages by name. Raises ``StartError`` where there are none.
    """
    here = Path(__file__).resolve().parents[2]
    for folder in (here / "examples", here.parents[1] / "examples"):
        if (folder / "common" / "task.py").is_file():
            if str(folder) not in sys.path:
                sys.path.insert(0, str(folder))
            return importlib.import_module("common.demo.demo")
    raise StartError("the examples are not installed beside this package")
