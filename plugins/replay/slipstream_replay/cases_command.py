from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import time
from pathlib import Path

from slipstream import contract as c
from slipstream.cli.common import add_client, age, connect, number, say, table, task_text, tell
from slipstream.cli.look.episodes import add_filters, filters
from slipstream.client import Client
from slipstream.errors import ConfigError
from slipstream.shared.files import private_file
from slipstream_replay.cases import file_cases, json_line, parts, stored_cases


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    sub = parser.add_subparsers(dest="action", required=True)
    verbs = {
        "list": "list sets, their versions and sizes",
        "show": "list a set's cases",
        "add": "add episodes, by id or by filters; the set is made if there is none",
        "sample": "add a sample of what the filters find, from every stratum alike",
        "remove": "take episodes out of the newest version, or delete the set",
        "export": "write a set to a file, an episode a line",
        "import": "read such a file into a set",
    }
    for verb, text in verbs.items():
        one = sub.add_parser(verb, help=text, description=text)
        add_client(one, again=True)
        if verb == "list":
            continue
        one.add_argument("name", metavar="SET", help="the set")
        if verb in ("show", "export"):
            one.add_argument("--version", type=int, help="as the set was at this version")
        if verb in ("add", "remove"):
            one.add_argument("id", nargs="*", metavar="EPISODE", help="ids of episodes")
        if verb == "sample":
            one.add_argument("count", type=int, metavar="COUNT", help="how many episodes to add")
            one.add_argument("--by", metavar="TAG", help="the tag whose values are the strata; default: tasks are")
        if verb in ("add", "sample"):
            add_filters(one)
        if verb == "remove":
            one.add_argument("--all", action="store_true", help="delete the set with all its versions")
        if verb == "export":
            one.add_argument("--out", type=Path, metavar="FILE", help="default: print the lines")
        if verb == "import":
            one.add_argument("file", type=Path, metavar="FILE")


def run(args: argparse.Namespace) -> int:
    if args.action in ("add", "sample", "import") and not re.fullmatch(c.CASE_NAME, args.name):
        raise ConfigError(f"SET {args.name!r}: letters, digits, dots, hyphens and underscores, at most 128 of them")
    if args.action == "remove" and bool(args.id) == args.all:
        raise ConfigError("give ids of episodes, or --all for the whole set")
    if args.action == "sample" and not 1 <= args.count <= c.CASES_MOST:
        raise ConfigError(f"COUNT {args.count}: from 1 to {c.CASES_MOST}")
    with connect(args) as client:
        match args.action:
            case "list":
                return _list(client, args)
            case "show":
                return _show(client, args)
            case "export":
                return _export(client, args)
            case "add":
                if not args.id and not filters(args):
                    raise ConfigError("which episodes? give ids or filters")
                return _tell(client.add_cases(args.name, c.CasesIn(episodes=args.id), **filters(args)), args)
            case "sample":
                return _tell(
                    client.add_cases(args.name, c.CasesIn(sample=args.count, by=args.by), **filters(args)), args
                )
            case "import":
                done = [client.import_cases(args.name, part) for part in parts(file_cases(args.file))]
                if not done:
                    raise ConfigError(f"{args.file}: no episodes in it")
                forgotten = [episode for d in done for episode in d.forgotten]
                all_parts = {"changed": sum(d.changed for d in done), "forgotten": forgotten}
                if done[-1].coming:  # the last part comes after all others
                    all_parts["coming"] = sum(d.coming for d in done)
                return _tell(done[-1].model_copy(update=all_parts), args)
        if args.all:
            gone = client.drop_cases(args.name)
            return tell(args, gone, f"{gone.name} is deleted, with {gone.cases} cases")
        return _tell(client.remove_cases(args.name, c.CasesRemoved(episodes=args.id)), args)


def _list(client: Client, args: argparse.Namespace) -> int:
    found = client.case_sets()
    rows = [(s.name, s.version, s.cases, age(s.changed, time.time())) for s in found.sets]
    return tell(args, found, table(("set", "version", "cases", "changed"), rows))


def _show(client: Client, args: argparse.Namespace) -> int:
    page = client.case_page(args.name, version=args.version)
    found = list(page.cases)
    while page.next is not None:
        page = client.case_page(args.name, version=page.version, after=page.next)
        found += page.cases
    now = time.time()
    rows = [
        (x.episode, x.key, task_text(x.task, x.tags), x.calls, number(x.reward), x.since, age(x.added, now))
        for x in found
    ]
    text = table(
        ("episode", "key", "task", "calls", "reward", "since", "age"), rows, {"task": 12, "episode": 16, "key": 8}
    )
    return tell(args, page.model_copy(update={"cases": found}), text)


def _export(client: Client, args: argparse.Namespace) -> int:
    lines = (json_line(episode) + "\n" for episode in stored_cases(client, args.name, args.version))
    if args.out is None:
        for line in lines:
            sys.stdout.write(line)
        return 0
    first = next(lines, "")  # an error comes before the file does
    with private_file(args.out) as out:
        count = sum(bool(out.write(line.encode())) for line in itertools.chain(filter(None, [first]), lines))
    print(json.dumps({"file": str(args.out), "cases": count}) if args.json else f"{args.out}: {count} cases")
    return 0


def _tell(done: c.CasesChanged, args: argparse.Namespace) -> int:
    """Exit status: 1 where something that was asked for is not done. The rest is."""
    filtered = args.action in ("add", "sample") and not getattr(args, "id", [])
    left_out = {
        "no such case" if args.action == "remove" else "no such episode": done.unknown,
        "too large to be copied": done.too_large,
        "retention has dropped its calls": done.dropped,
        "forgotten, so left out": done.forgotten,
    }
    if args.json:
        print(done.model_dump_json())
    else:
        if done.coming:
            taken = (
                f"{done.changed - done.coming} of {done.changed} changes" if done.changed > done.coming else "no change"
            )
            say(f"{done.set.name}: the store has {taken} yet, and takes {done.coming} in a moment")
        elif done.set.version:
            say(f"{done.set.name}, version {done.set.version}: {done.set.cases} cases ({done.changed} in this change)")
        else:
            say(f"nothing was added, and there is no set {done.set.name}", file=sys.stderr)
        if filtered and not (done.found or done.changed):
            say("no episode that has ended, with a call, matches the filters", file=sys.stderr)
        if done.more:
            say("the filters find more than one change takes: narrow them, or take a sample", file=sys.stderr)
        for text, ids in left_out.items():
            if ids:
                say(f"{text}: {', '.join(ids)}", file=sys.stderr)
    missed = done.unknown or done.too_large or done.dropped or (filtered and not (done.found or done.changed))
    return 1 if missed or not done.set.version else 0
