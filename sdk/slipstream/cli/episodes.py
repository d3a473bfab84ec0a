from __future__ import annotations

import argparse
import json
from typing import Any

from slipstream.cli.common import MOMENT, add_client, connect, number, table, when
from slipstream.contract import EpisodeDetail
from slipstream.errors import ConfigError
from slipstream.moments import parse_moment

FILTERS = ("task", "split", "adapter", "state", "model", "reward_min", "reward_max", "since", "until")
MOMENTS = ("since", "until")


def add_filters(parser: argparse.ArgumentParser) -> None:
    for name in FILTERS:
        kind = float if name in {"reward_min", "reward_max"} else str
        text = MOMENT if name in MOMENTS else None
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=text)
    parser.add_argument("--tag", metavar="KEY=VALUE", action="append", default=[])


def filters(args: argparse.Namespace) -> dict[str, Any]:
    if wrong := next((t for t in args.tag if "=" not in t), None):
        raise ConfigError(f"--tag {wrong}: write KEY=VALUE")
    tags = dict(t.split("=", 1) for t in args.tag)
    found = {name: getattr(args, name) for name in FILTERS if getattr(args, name) is not None}
    found |= {name: parse_moment(found[name], flag=f"--{name}") for name in MOMENTS if name in found}
    return found | ({"tags": tags} if tags else {})


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    add_filters(parser)
    parser.add_argument("id", nargs="?", help="show this episode with its calls")
    parser.add_argument("--delete", action="store_true", help="forget it: delete its text and tokens")
    parser.add_argument("--limit", type=int, default=30)


def describe(episode: EpisodeDetail) -> str:
    """A page for a terminal: who, rewards, and the conversation call by call."""
    lines = [
        (
            f"episode {episode.id}  task {episode.task or '-'}  {episode.split}  {episode.state}  adapter "
            f"{episode.adapter or '-'}"
        )
    ]
    lines += [
        f"  reward {r.name} = {r.value:g} by {r.source} at {when(r.at)}  {r.reason or ''}" for r in episode.rewards
    ]
    numbers = {call.id: call.number for call in episode.call_list}
    for call in episode.call_list:
        before = numbers.get(call.extends or "")
        goes_on = "begins a conversation" if call.extends is None else f"goes on with call {before or 0}"
        if call.extends is not None and before is None:
            goes_on = f"goes on with {call.extends}"
        why = "" if call.trainable else f"  not trained on: {call.untrainable_reason}"
        lines.append(
            f"  call {call.number}  {call.outcome} {call.status}  "
            f"{call.prompt_tokens}+{call.completion_tokens} tokens  {goes_on}{why}"
        )
        lines += [f"    > {json.dumps(m, ensure_ascii=False)[:300]}" for m in call.messages[-2:]]
        lines += [f"    < {json.dumps(m, ensure_ascii=False)[:300]}" for m in call.reply]
    return "\n".join(lines)


def run(args: argparse.Namespace) -> int:
    if args.delete and not args.id:
        raise ConfigError("--delete: which episode? give its id")
    with connect(args) as client:
        if args.id and args.delete:
            gone = client.delete(args.id)
            said = f"forgotten; trained on it: {', '.join(gone.adapters) or 'nothing'}"
            if gone.exports:
                said += f"; still in: {', '.join(gone.exports)}"
            print(gone.model_dump_json() if args.json else said)
            return 0
        if args.id:
            episode = client.episode(args.id)
            print(episode.model_dump_json(indent=2) if args.json else describe(episode))
            return 0
        page = client.episodes(limit=args.limit, **filters(args))
    if args.json:
        print(page.model_dump_json(indent=2))
        return 0
    rows = [
        (e.id, e.task or "-", e.split, e.state, e.adapter or "-", e.arm, e.calls, number(e.reward), when(e.started))
        for e in page.episodes
    ]
    print(table(("episode", "task", "split", "state", "adapter", "arm", "calls", "reward", "started"), rows))
    return 0
