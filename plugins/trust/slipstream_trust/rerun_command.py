from __future__ import annotations

import argparse
from pathlib import Path

from slipstream.cli.common import add_config, add_url, proxy_url
from slipstream.cli.look.episodes import add_filters, filters
from slipstream.cli.start.judge import judge_config
from slipstream.contract.base import PLAIN_ID_PATTERN
from slipstream.errors import ConfigError
from slipstream.shared.functions import need


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rubric", help="the rubric's text, or a file with it")
    add_filters(parser, task="only tasks that match this glob")
    parser.set_defaults(since="24h")
    parser.add_argument("--name", help="reward name of the new scores; default: judge.name")
    add_config(parser, again=True)
    add_url(parser, again=True)


def run(args: argparse.Namespace) -> int:
    config = judge_config(args)
    if args.name is not None and PLAIN_ID_PATTERN.match(args.name) is None:
        raise ConfigError(f"--name {args.name!r}: a name has 1 to 128 of A-Z a-z 0-9 . _ -")
    if args.rubric is not None and (not args.rubric.strip() or (len(args.rubric) < 256 and Path(args.rubric).is_dir())):
        raise ConfigError(f"--rubric {args.rubric!r}: give the rubric's text, or a file with it")
    rerun = need("slipstream_trust.rerun", "judge").main
    which = {name: value for name, value in filters(args).items() if name not in ("since", "task")}
    asked = {"since": args.since, "rubric": args.rubric, "task": args.task, "name": args.name}
    return int(rerun(config, proxy_url(args), args.key, **asked, filters=which))
