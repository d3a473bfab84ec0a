from __future__ import annotations

import argparse
import sys
import time

from slipstream import contract as c
from slipstream.cli.common import add_client, away_line, connect, say, step_line
from slipstream.cli.look.episodes import tags_of
from slipstream.client import Client
from slipstream.contract.episodes import ForgottenTraces
from slipstream.errors import ConfigError

POLL_INTERVAL_S = 0.5
FORGETTING_STEPS = {
    "waiting": "waits for more of them",
    "database": "the database is rewritten",
    "archives": "archives are rewritten",
    "spool": "the spool is written over",
    "idle": "done",
}


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("id", nargs="*", help="ids of episodes")
    parser.add_argument("--of-key", metavar="KEY", help="every episode of this API key")
    parser.add_argument(
        "--tag",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="episodes with this tag; given twice: with both tags",
    )
    parser.add_argument("--user", help="episodes whose tag `user` has this value")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--wait", action="store_true", help="wait until their text is gone from every file")


def which(args: argparse.Namespace) -> list[c.ForgetIn]:
    """The requests that name them. Raises ``ConfigError``."""
    tags = tags_of(args)
    if not (args.id or args.of_key or args.tag or args.user):
        raise ConfigError("which episodes? give ids, --of-key, --tag or --user")
    parts = [args.id[at : at + c.FORGET_MOST] for at in range(0, len(args.id), c.FORGET_MOST)] or [[]]
    return [c.ForgetIn(episodes=part, key=args.of_key, tags=tags, user=args.user) for part in parts]


def confirmed(args: argparse.Namespace) -> bool:
    if args.yes or args.id or not sys.stdin.isatty():
        return True
    return input("This permanently deletes every matching episode. Continue? [y/N] ").strip().lower() in ("y", "yes")


def forget(client: Client, wanted: list[c.ForgetIn]) -> c.ForgetOut:
    """Ask until there are no more."""
    found: list[c.ForgetOut] = []
    for asked in wanted:
        while True:
            found.append(client.forget(asked))
            if not found[-1].more:
                break
            print(f"{sum(f.forgotten for f in found)} forgotten so far", file=sys.stderr)
    names = ForgottenTraces.model_fields.keys() - {"steps"}
    traces = {name: sorted({x for f in found for x in getattr(f, name)}) for name in names}
    steps = list({s.batch: s for f in found for s in f.steps}.values())
    unknown = [e for f in found for e in f.unknown]
    return c.ForgetOut(forgotten=sum(f.forgotten for f in found), unknown=unknown, steps=steps, **traces)


def wait(client: Client) -> None:
    """Until no file holds them, telling each step. A proxy that is away is named, and not waited for."""
    said = ""
    while True:
        now = client.status().forgetting
        if now.episodes:
            text = f"{now.episodes} in files: {FORGETTING_STEPS[now.step]}" + (
                f" ({now.error}; tried again)" if now.error else ""
            )
        elif others := [p for p in now.elsewhere if not p.away]:
            text = f"{max(p.episodes for p in others)} in the spools of {len(others)} other proxies"
        else:
            break
        if text != said:
            print(text, file=sys.stderr)
            said = text
        time.sleep(POLL_INTERVAL_S)
    for line in map(away_line, (p for p in now.elsewhere if p.away)):
        say(line, file=sys.stderr)


def run(args: argparse.Namespace) -> int:
    wanted = which(args)
    if not confirmed(args):
        return 1
    with connect(args) as client:
        gone = forget(client, wanted)
        if args.wait:
            wait(client)
    if args.json:
        print(gone.model_dump_json())
        return 0
    none = "no version yet" if gone.steps else "nothing"
    say(f"{gone.forgotten} forgotten; adapters trained on them: {', '.join(gone.adapters) or none}")
    for line in map(step_line, gone.steps):
        say(line)
    if gone.made_from:
        say(f"made from these: {', '.join(gone.made_from)}")
    if gone.anew:
        say(f"taken back, and trained anew without them: {', '.join(gone.anew)}")
    elif gone.adapters:
        first = min(gone.adapters, key=lambda name: (name.rpartition("@")[0], len(name), name))
        say(f"train anew without them: slipstream adapters retrain {first}")
    if gone.cases:
        say(f"copies were removed from the case sets {', '.join(gone.cases)}")
    if gone.exports:
        say(f"still contained in: {', '.join(gone.exports)}")
    if gone.unknown:
        say(f"no such episode: {', '.join(gone.unknown)}", file=sys.stderr)
    return 0 if gone.forgotten or not gone.unknown else 1
