from __future__ import annotations

import argparse

from slipstream.cli.common import add_client, connect


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("text", help="what happened: the charts show this text")
    parser.add_argument("--at", type=float, help="when, in seconds since the epoch; default: now")


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        found = client.annotate(args.text, args.at)
    print(found.model_dump_json() if args.json else "noted")
    return 0
