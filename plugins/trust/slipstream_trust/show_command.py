from __future__ import annotations

import argparse

from slipstream.cli.common import add_config, add_json, add_url, proxy_url
from slipstream.cli.start.judge import judge_config
from slipstream.shared.functions import need


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", help="the group's id (an episode's `group`)")
    parser.add_argument("--prompt", action="store_true", help="print the prompt too")
    add_config(parser, again=True)
    add_url(parser, again=True)
    add_json(parser, again=True)


def run(args: argparse.Namespace) -> int:
    config = judge_config(args, needed=False)
    show = need("slipstream_trust.judgement", "judge").main
    return int(show(config.judge, proxy_url(args), args.key, args.group, as_json=args.json, prompt=args.prompt))
