from __future__ import annotations

import argparse

from slipstream.cli.common import add_client, connect, tell


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("--reason", help="why: `slipstream status` shows it to others")


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        found = client.pause_training(args.reason)
    by = "" if found.by in (None, "-") else f" (by {found.by})"
    return tell(args, found, f"training is paused{by}: slipstream resume ends it")
