from __future__ import annotations

import argparse
import json

from slipstream.cli.common import add_config, add_json, add_url, add_verbs, connect, proxy_url, read_config
from slipstream.config import Config
from slipstream.errors import ConfigError
from slipstream.operate.run.preflight import wants_judge
from slipstream.shared.functions import need
from slipstream.shared.log import setup_logging


def add(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_url(parser)
    add_json(parser)
    parser.add_argument("--model", help="LiteLLM model, as judge.model")
    sub = parser.add_subparsers(dest="action")
    add_verbs(sub, "judge")
    retry = sub.add_parser("retry", help="hand out again the groups that the judge failed at too often")
    retry.add_argument("group", nargs="?", help="the group's id; default: all of them")
    add_config(retry, again=True)
    add_url(retry, again=True)
    add_json(retry, again=True)


def judge_config(args: argparse.Namespace, *, needed: bool = True) -> Config:
    """Raises ``ConfigError`` where no judge is set and one is needed."""
    setup_logging()
    config = read_config(args, [f"judge.model={args.model}"] if args.model else [])
    if needed and not wants_judge(config):
        raise ConfigError("no judge: set judge.model (a LiteLLM name) or judge.function (module:function)")
    return config


def run(args: argparse.Namespace) -> int:
    if args.action == "retry":
        return _retry(args)
    return int(need("slipstream_judge.run.worker", "judge").main(judge_config(args), proxy_url(args), args.key))


def _retry(args: argparse.Namespace) -> int:
    with connect(args) as client:
        groups = [args.group] if args.group else [group.id for group in client.parked()]
        for group in groups:
            client.retry_group(group)
    count = f"{len(groups)} {'group is' if len(groups) == 1 else 'groups are'}"
    print(json.dumps({"retried": groups}) if args.json else f"{count} handed out again")
    return 0
