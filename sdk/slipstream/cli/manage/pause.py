from __future__ import annotations

import argparse

from slipstream.cli.common import add_client, connect


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("--reason", help="why: `slipstream status` shows it to others")


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        found = client.pause_training(args.reason)
    print(found.model_dump_json() if args.json else f"training is paused (by {found.by}): slipstream resume ends it")
    return 0
