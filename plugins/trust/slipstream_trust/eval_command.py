from __future__ import annotations

import argparse

from slipstream.cli.common import add_config, add_url, proxy_url
from slipstream.cli.start.judge import judge_config
from slipstream.shared.functions import need


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="JSONL (docs/judge.md)")
    parser.add_argument("--plot", metavar="PNG")
    parser.add_argument("--repeats", type=int, default=2, help="times each group is judged, for the test-retest spread")
    add_config(parser, again=True)
    add_url(parser, again=True)


def run(args: argparse.Namespace) -> int:
    config = judge_config(args)
    evaluate = need("slipstream_trust.evaluation", "judge").main
    asked = {"plot": args.plot, "repeats": args.repeats, "url": proxy_url(args), "key": args.key}
    return int(evaluate(config, args.file, **asked))
