from __future__ import annotations

import argparse
import json

from slipstream.cli.common import add_client, add_since, connect, read_config, since, table, when
from slipstream.contract import Adapter, AdapterState
from slipstream.operate.adapter_routes import was_the_engines


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    add_since(parser)
    sub = parser.add_subparsers(dest="action")
    listing = sub.add_parser("list", help="all versions (what `slipstream adapters` alone does)")
    add_since(listing, argparse.SUPPRESS)  # else its default would undo what stands before `list`
    for action, text in (("promote", "make it live"), ("rollback", "take it back")):
        p = sub.add_parser(action, help=text)
        p.add_argument("version")
        p.add_argument("--reason")
    push = sub.add_parser("push", help="copy an adapter out, with a card that says what it was trained on")
    push.add_argument("version")
    push.add_argument("--to", required=True, metavar="DIR|hf:NAME|s3://…")
    push.add_argument("--merged", action="store_true", help="whole weights: the base model with the adapter merged in")
    for verb in sub.choices.values():
        add_client(verb, again=True)


def line(adapter: Adapter) -> tuple[object, ...]:
    return (
        adapter.name,
        adapter.state,
        "-" if adapter.step is None else adapter.step,
        adapter.episodes,
        when(adapter.created),
        adapter.reason or "",
    )


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        if args.action == "push":
            from slipstream.operate.push import push

            place = push(client, read_config(args), args.version, args.to, merged=args.merged)
            print(json.dumps({"pushed": str(place)}) if args.json else place)
            return 0
        if args.action in {"promote", "rollback"}:
            adapter = getattr(client, args.action)(args.version, args.reason)
            print(adapter.model_dump_json(indent=2) if args.json else f"{adapter.name}: {adapter.state}")
            return 0
        found = client.adapters()
    if (begin := since(args)) is not None:
        found.adapters = [a for a in found.adapters if a.created >= begin]
    if args.json:
        print(found.model_dump_json(indent=2))
        return 0
    for model, live in found.live.items():
        print(f"{model}: new episodes get {live}")
    print(table(("adapter", "state", "step", "open episodes", "created", "reason"), [line(a) for a in found.adapters]))
    for a in found.adapters:
        if a.state == AdapterState.REFUSED and a.files and was_the_engines(a.reason, a.name):
            print(f"{a.name} was refused because the engine took no adapters: `slipstream adapters promote {a.name}`")
    return 0
