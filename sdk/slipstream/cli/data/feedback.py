from __future__ import annotations

import argparse

from pydantic import ValidationError

from slipstream.cli.common import add_client, connect
from slipstream.contract import FeedbackIn
from slipstream.errors import ConfigError


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("id", help="the episode")
    parser.add_argument("text", nargs="?", help="what was wrong, or is wanted: the model learns from it")
    parser.add_argument("--call", help="the call that it is about (x-slipstream-call); default: the whole run")
    parser.add_argument("--reply", help="a better reply")
    parser.add_argument("--thumb", choices=("up", "down"))
    parser.add_argument("--of-key", help="the key that made the episode, where it is another one's")


def run(args: argparse.Namespace) -> int:
    try:
        said = FeedbackIn(text=args.text, call=args.call, reply=args.reply, thumb=args.thumb)
    except ValidationError as e:
        first = e.errors()[0]
        raise ConfigError(": ".join((*map(str, first["loc"]), first["msg"].removeprefix("Value error, ")))) from e
    with connect(args) as client:
        ack = client.add_feedback(args.id, said, of_key=args.of_key)
    print(ack.model_dump_json() if args.json else f"kept{f'; {ack.fix}' if ack.fix else ''}")
    return 0
