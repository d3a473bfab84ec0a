from __future__ import annotations

import argparse
import json
from pathlib import Path

from slipstream.cli.common import add_config, add_json, add_url, connect, proxy_url, read_config
from slipstream.cli.look.episodes import add_filters, filters
from slipstream.contract.base import PLAIN_ID_PATTERN
from slipstream.errors import ConfigError
from slipstream.shared.functions import need
from slipstream.shared.log import setup_logging


def add(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_url(parser)
    add_json(parser)
    parser.add_argument("--model", help="LiteLLM model, as judge.model")
    sub = parser.add_subparsers(dest="action")
    evaluate = sub.add_parser("eval", help="measure a judge on episodes whose right score is known")
    evaluate.add_argument("file", help="JSONL (docs/judge.md)")
    evaluate.add_argument("--plot", metavar="PNG")
    evaluate.add_argument(
        "--repeats", type=int, default=2, help="times each group is judged, for the test-retest spread"
    )
    show = sub.add_parser("show", help="print one judgement: scores, reasons, votes, spread, cost, prompt")
    show.add_argument("group", help="the group's id (an episode's `group`)")
    show.add_argument("--prompt", action="store_true", help="print the prompt too")
    rerun = sub.add_parser("rerun", help="score stored episodes again; earlier scores stay")
    rerun.add_argument("--rubric", help="the rubric's text, or a file with it")
    add_filters(rerun, task="only tasks that match this glob")
    rerun.set_defaults(since="24h")
    rerun.add_argument("--name", help="reward name of the new scores; default: judge.name")
    retry = sub.add_parser("retry", help="hand out again the groups that the judge failed at too often")
    retry.add_argument("group", nargs="?", help="the group's id; default: all of them")
    for verb in (evaluate, show, rerun, retry):
        add_config(verb, again=True)
        add_url(verb, again=True)
    for verb in (show, retry):
        add_json(verb, again=True)


def run(args: argparse.Namespace) -> int:
    if args.action == "retry":
        return _retry(args)
    setup_logging()
    config = read_config(args, [f"judge.model={args.model}"] if args.model else [])
    if args.action == "show":
        show = need("slipstream_judge.trust.judgement", "judge").main
        return int(show(config.judge, proxy_url(args), args.key, args.group, as_json=args.json, prompt=args.prompt))
    if config.judge.model is None and config.judge.function is None:
        raise ConfigError("no judge: set judge.model (a LiteLLM name) or judge.function (module:function)")
    if args.action == "eval":
        evaluate = need("slipstream_judge.trust.evaluation", "judge").main
        asked = {"plot": args.plot, "repeats": args.repeats, "url": proxy_url(args), "key": args.key}
        return int(evaluate(config, args.file, **asked))
    if args.action == "rerun":
        _check_rerun(args)
        rerun = need("slipstream_judge.run.rerun", "judge").main
        which = {name: value for name, value in filters(args).items() if name not in ("since", "task")}
        asked = {"since": args.since, "rubric": args.rubric, "task": args.task, "name": args.name}
        return int(rerun(config, proxy_url(args), args.key, **asked, filters=which))
    return int(need("slipstream_judge.run.worker", "judge").main(config, proxy_url(args), args.key))


def _check_rerun(args: argparse.Namespace) -> None:
    if args.name is not None and PLAIN_ID_PATTERN.match(args.name) is None:
        raise ConfigError(f"--name {args.name!r}: a name has 1 to 128 of A-Z a-z 0-9 . _ -")
    if args.rubric is not None and (not args.rubric.strip() or (len(args.rubric) < 256 and Path(args.rubric).is_dir())):
        raise ConfigError(f"--rubric {args.rubric!r}: give the rubric's text, or a file with it")


def _retry(args: argparse.Namespace) -> int:
    with connect(args) as client:
        groups = [args.group] if args.group else [group.id for group in client.parked()]
        for group in groups:
            client.retry_group(group)
    count = f"{len(groups)} {'group is' if len(groups) == 1 else 'groups are'}"
    print(json.dumps({"retried": groups}) if args.json else f"{count} handed out again")
    return 0
