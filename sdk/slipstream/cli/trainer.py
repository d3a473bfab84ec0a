from __future__ import annotations

import argparse
import os
import sys

from slipstream.cli.common import add_config, add_url, child_env, need, proxy_url, read_config
from slipstream.errors import StartError
from slipstream.log import setup_logging


def add(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_url(parser)
    parser.add_argument("--model", help="folder or hub name of the base weights")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="data-parallel processes (torchrun)")


def torchrun(processes: int, url: str | None) -> list[str]:
    """The same command again, ``processes`` times side by side; the configuration goes by environment."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [*launcher, "-m", "slipstream.cli", "trainer", *(["--url", url] if url else [])]


def run(args: argparse.Namespace) -> int:
    setup_logging()
    config = read_config(args, [f"trainer.model={args.model}"] if args.model else [])
    if (config.trainer.model or config.engine.model) is None:
        raise StartError("no model: give --model, or trainer.model in the configuration")
    if args.processes > 1 and "RANK" not in os.environ:
        os.environ.update(child_env(config))
        if args.key:  # not in argv, where every user of the machine sees it
            os.environ["SLIPSTREAM_API_KEY"] = args.key
        os.execv(sys.executable, torchrun(args.processes, proxy_url(args)))  # noqa: S606
    return int(need("slipstream_trainer.process", "trainer").main(config, proxy_url(args), args.key))
