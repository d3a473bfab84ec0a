from __future__ import annotations

import argparse

from slipstream.cli.common import add_client, connect, finite, tell

GATE_RESTART_NOTE = ": the gate counts only runs that begin from then on"


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("text", help="what happened: the charts show this text")
    parser.add_argument("--at", type=finite, help="when, in seconds since the epoch; default: now")
    parser.add_argument(
        "--rewards-changed",
        action="store_true",
        help="rewards mean something else from then on: the gate's evidence begins anew",
    )


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        found = client.annotate(args.text, args.at, rewards_changed=args.rewards_changed)
    return tell(args, found, f"noted{GATE_RESTART_NOTE if args.rewards_changed else ''}")
