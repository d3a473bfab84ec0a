from __future__ import annotations

import argparse

from slipstream.cli.common import add_client, connect


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("--reason", help="for the audit log")


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        found = client.resume_training(args.reason)
    print(found.model_dump_json() if args.json else "training goes on")
    return 0
