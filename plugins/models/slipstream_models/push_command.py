from __future__ import annotations

import argparse
import json

from slipstream.cli.common import add_client, connect, read_config
from slipstream_models.push import push


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("version")
    parser.add_argument(
        "--to",
        required=True,
        metavar="DIR|SCHEME:…",
        help="a folder, or s3://, gs://, az://, hf:, fireworks:, together:, wandb:",
    )
    parser.add_argument(
        "--merged", action="store_true", help="whole weights: the base model with the adapter merged in"
    )
    add_client(parser, again=True)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        place = push(client, read_config(args), args.version, args.to, merged=args.merged)
    print(json.dumps({"pushed": str(place)}) if args.json else place)
    return 0
