from __future__ import annotations

import argparse

from slipstream.cli.common import add_client, add_since, connect, say, since, table
from slipstream.contract import CostLine


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument(
        "--by", default="adapter", metavar="WHAT", help="adapter (default), model, task, split, arm, role or tag.NAME"
    )
    parser.add_argument("--task", help="only runs of this task")
    parser.add_argument("--tag", metavar="NAME:VALUE", help="only runs with this tag")
    add_since(parser)


def line(found: CostLine, name: str) -> tuple[object, ...]:
    figures = (found.episodes, found.calls, found.prompt_tokens, found.completion_tokens)
    seconds = (duration(found.serving_seconds), duration(found.training_seconds))
    dollars = "-" if found.dollars is None else f"${found.dollars:.4f}"
    return name, *map(rounded, figures), *seconds, dollars


def rounded(n: int) -> str:
    """At most seven characters; ``--json`` has the whole number."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n:,}"


def duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        costs = client.cost(each=args.by, task=args.task, tag=args.tag, since=since(args))
    if args.json:
        print(costs.model_dump_json(indent=2))
        return 0
    head = (args.by, "episodes", "calls", "prompt", "sampled", "engine", "training", "judge")
    rows = [line(one, one.name or "(none)") for one in costs.lines]
    print(table(head, [*rows, line(costs.total, "all")], {args.by: 10}))
    if costs.left_out:
        say(f"{costs.left_out} smaller rows are included in the total only")
    return 0
