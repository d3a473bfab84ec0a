from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping

from slipstream.cli.common import add_client, add_since, add_verbs, age, connect, say, since, table, tell
from slipstream.client import Client
from slipstream.contract import Action, Adapter, AdapterState, LearningPoint
from slipstream.errors import ApiError
from slipstream.shared.intervals import told

ADAPTER_ACTIONS: dict[Action, str] = {
    "promote": "make it live; ends the running trial, and takes back a newer version on trial",
    "demote": "take it back; new episodes get the last accepted version",
    "freeze": "hold it: it is not accepted, and newer versions wait",
    "unfreeze": "the gate decides on it again, and no guard freezes it",
}


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    add_since(parser)
    sub = parser.add_subparsers(dest="action")
    listing = sub.add_parser("list", help="all versions (what `slipstream adapters` alone does)")
    add_since(listing, argparse.SUPPRESS)  # else its default would undo what stands before `list`
    for action, text in ADAPTER_ACTIONS.items():
        p = sub.add_parser(action, help=text)
        p.add_argument("version")
        p.add_argument("--reason")
        p.add_argument("--dry-run", action="store_true", help="say what would happen, and change nothing")
        p.add_argument("--yes", action="store_true", help="do not ask")
        if action in ("promote", "demote"):
            p.add_argument("--group", metavar="tag.NAME=VALUE", help="for new runs of this group alone")
    for verb in sub.choices.values():
        add_client(verb, again=True)
    add_verbs(sub, "adapters")


MIN_COLUMN_WIDTHS = {"why": 12, "adapter": 12}


def line(adapter: Adapter, rewards: Mapping[str, LearningPoint], now: float) -> tuple[object, ...]:
    point = rewards.get(adapter.name)
    return (
        adapter.name,
        adapter.state,
        "-" if adapter.step is None else adapter.step,
        "-" if point is None else told(point.mean, point.low, point.high),
        adapter.episodes,
        age(adapter.created, now),
        adapter.reason or "",
    )


def rewards_of(client: Client) -> tuple[str, dict[str, LearningPoint]]:
    """Each version's mean reward: of held-out runs, or of the runs that it serves where more versions have those."""
    try:
        points = client.learning(by="adapter", each="role").points
    except ApiError:  # the list is there without it: the store may be away
        return "", {}
    found = {
        role: {p.adapter: p for p in points if p.series == role and p.version and p.adapter is not None}
        for role in ("held-out", "live")
    }
    role = max(found, key=lambda role: len(found[role]))
    return (f"reward: the mean of {role} runs (95 % interval)", found[role]) if found[role] else ("", {})


def _agrees() -> bool:
    """Whether the person at the terminal goes on."""
    return input("Go on? [y/N] ").strip().lower() in ("y", "yes")


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        if args.action not in (None, "list"):
            action: Action = args.action
            group = getattr(args, "group", None)
            effect = client.adapter_effect(args.version, action, group)
            if args.dry_run:
                return tell(args, effect, "\n".join(effect.says), indent=2)
            if not args.json:
                say("\n".join(effect.says))
            if not (args.yes or args.json) and sys.stdin.isatty() and not _agrees():
                return 1
            more = () if group is None else (group,)
            adapter = getattr(client, action)(args.version, args.reason, *more)
            said = f"{adapter.name}: {adapter.state}" + (f" ({adapter.reason})" if adapter.reason else "")
            return tell(args, adapter, said, indent=2)
        found = client.adapters()
        what, rewards = ("", {}) if args.json else rewards_of(client)
    if (begin := since(args)) is not None:
        found.adapters = [a for a in found.adapters if a.created >= begin]
    if args.json:
        print(found.model_dump_json(indent=2))
        return 0
    for model, live in found.live.items():
        tried = (
            a.gate.gets for a in found.adapters if a.model == model and a.state == AdapterState.CANDIDATE and a.gate
        )
        say(f"{model}: new episodes get {live}" + "".join(f", but {text}" for text in tried if text))
    header, now = ("adapter", "state", "step", "reward", "open", "age", "why"), time.time()
    print(table(header, [line(a, rewards, now) for a in found.adapters], MIN_COLUMN_WIDTHS))
    if what:
        say(f"{what}; open: episodes still using it")
    for a in found.adapters:
        if a.kept_from and a.state in (AdapterState.CANDIDATE, AdapterState.LIVE):
            kept = ", ".join(f"{group} gets {to}" for group, to in a.kept_from.items())
            say(f"{a.name} is not for all runs: {kept}")
        if a.given and a.state in (AdapterState.CANDIDATE, AdapterState.LIVE):
            say(f"{a.name} was given by hand to {', '.join(a.given)}: their losses alone do not speak against it")
    return 0
