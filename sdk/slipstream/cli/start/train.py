from __future__ import annotations

import argparse
from pathlib import Path

from slipstream.cli.common import add_config, add_url, proxy_url, read_config
from slipstream.shared.functions import need
from slipstream.shared.log import setup_logging


def add(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_url(parser)
    parser.add_argument("--once", action="store_true", help="take one step on the groups that wait, then exit")
    parser.add_argument("--from-export", metavar="FILE", help="train offline on what `slipstream export` wrote")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--init-adapter", metavar="DIR", help="start from this adapter")
    parser.add_argument("--out", metavar="DIR", help="where the adapter goes; default: the adapters folder")


def run(args: argparse.Namespace) -> int:
    setup_logging()
    config = read_config(args, [f"trainer.init_adapter={args.init_adapter}"] if args.init_adapter else [])
    train = need("slipstream_trainer.run.export_training", "trainer").train
    export = Path(args.from_export) if args.from_export else None
    return int(
        train(
            config,
            once=args.once,
            from_export=export,
            resume=args.resume,
            out=args.out,
            url=proxy_url(args),
            key=args.key,
        )
    )
