from __future__ import annotations

import argparse

from slipstream.cli.common import add_client, connect, tell


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("--reason", help="for the audit log")


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        found = client.resume_training(args.reason)
    return tell(args, found, "training goes on")
