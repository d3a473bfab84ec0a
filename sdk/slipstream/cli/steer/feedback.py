from __future__ import annotations

import argparse

from slipstream.cli.common import add_client, connect, tell
from slipstream.contract import FeedbackIn


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("id", help="the episode")
    parser.add_argument("text", nargs="?", help="what was wrong, or is wanted: the model learns from it")
    parser.add_argument("--call", help="the call that it is about (x-slipstream-call); default: the whole run")
    parser.add_argument("--reply", help="a better reply")
    parser.add_argument("--thumb", choices=("up", "down"))
    parser.add_argument("--of-key", help="the key that made the episode, where it is another one's")


def run(args: argparse.Namespace) -> int:
    said = FeedbackIn(text=args.text, call=args.call, reply=args.reply, thumb=args.thumb)
    with connect(args) as client:
        ack = client.add_feedback(args.id, said, of_key=args.of_key)
    return tell(args, ack, f"kept{f'; {ack.fix}' if ack.fix else ''}")
