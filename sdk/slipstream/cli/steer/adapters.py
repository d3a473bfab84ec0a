from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from slipstream.cli.common import add_client, add_since, age, connect, read_config, say, since, table, tell, wrapped
from slipstream.client import Client
from slipstream.contract import Action, Adapter, AdapterState, LearningPoint, ReplayShown, TrainAnewIn
from slipstream.engines import was_the_engines
from slipstream.errors import ApiError, ConfigError
from slipstream.operate.models.retrain import plan_of, write_rows
from slipstream.shared.functions import need
from slipstream.shared.intervals import told

ADAPTER_ACTIONS: dict[Action, str] = {
    "promote": "make it live; what is on trial ends, and a newer version on trial is taken back",
    "demote": "take it back; new episodes get the last accepted version",
    "freeze": "it is not accepted, and newer versions wait",
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
    replayed = sub.add_parser("replay", help="how it did on recorded steps, with its worst cases side by side")
    replayed.add_argument("version")
    push = sub.add_parser("push", help="copy an adapter out, with a card that says what it was trained on")
    push.add_argument("version")
    push.add_argument(
        "--to",
        required=True,
        metavar="DIR|SCHEME:…",
        help="a folder, or s3://, gs://, az://, hf:, fireworks:, together:, wandb:",
    )
    push.add_argument("--merged", action="store_true", help="whole weights: the base model with the adapter merged in")
    retrain = sub.add_parser("retrain", help="train anew from the store, without episodes that were forgotten or named")
    retrain.add_argument("version", nargs="?", help="the first to be made anew; default: the first trained on EPISODE")
    retrain.add_argument("--without", nargs="+", default=[], metavar="EPISODE", help="ids of episodes to leave out")
    retrain.add_argument("--offline", action="store_true", help="train here, and leave what is served as it is")
    retrain.add_argument(
        "--out", type=Path, metavar="DIR", help="train here, as --offline does, and write the adapter to DIR"
    )
    retrain.add_argument("--dry-run", action="store_true", help="say what would be trained on, and train nothing")
    for verb in sub.choices.values():
        add_client(verb, again=True)


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


def replay_text(shown: ReplayShown) -> str:
    """A version's replay for people: figures of each question, then the steps where it lost most."""
    replay = shown.replay
    if replay is None:
        return f'{shown.adapter} was not replayed: gate.mode = "replay" does that with each new version'
    rows = [
        (q.set, q.question, q.verdict, q.cases, f"{q.candidate:.3f}", f"{q.control:.3f}", f"{q.visible:.2f}")
        for q in replay.questions
    ]
    lines = [f"{shown.adapter}: {replay.outcome} ({replay.reason}); {replay.tokens:,} tokens"]
    lines.append(table(("set", "question", "verdict", "cases", shown.adapter, replay.control, "would be seen"), rows))
    for pair in shown.worst:
        figures = f"{pair.candidate:.2f} against {pair.control:.2f}"
        lines += [
            "",
            f"{pair.episode}, call {pair.call} ({pair.set}, {pair.question}): {figures}",
            f"  prompt ends: {json.dumps(pair.prompt)}",
            f"  {shown.adapter}: {json.dumps(pair.candidate_reply)}",
            f"  {replay.control}: {json.dumps(pair.control_reply)}",
        ]
    return "\n".join([*lines, "", shown.limits])


def _retrain(client: Client, args: argparse.Namespace) -> int:
    """Exit status 1: nothing was trained."""
    if args.version is None and not args.without:
        raise ConfigError("what is to be made anew? give a version, or --without EPISODE…")
    if not (args.offline or args.out):
        return _anew(client, args)
    config = read_config(args)
    plan = plan_of(client, args.version, args.without)
    start = config.adapters_dir / plan.start.path if plan.start is not None else None
    if start is not None and not start.is_dir():
        raise ConfigError(f"{start}: the files of the version before {plan.first} are gone (adapters.keep)")
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "retrain.jsonl"
        write_rows(client, plan, set(args.without), rows)
        begins = plan.start.name if plan.start is not None else "the base model"
        left = f"{len(plan.left_out)} left out, {plan.forgotten} forgotten"
        said = (
            f"{plan.first} to {plan.last} anew from {begins}: {plan.episodes} episodes of {len(plan.batches)} batches"
        )
        told = asdict(plan) | {"start": begins}
        print(json.dumps(told) if args.json else wrapped(f"{said} ({left})"), flush=True)
        if args.dry_run:
            return 0
        if not plan.episodes:
            raise ConfigError("no episode is left to train on: promote the version before it")
        if start is not None:
            trainer = config.trainer.model_copy(update={"init_adapter": str(start)})
            config = config.model_copy(update={"trainer": trainer})
        train = need("slipstream_trainer.run.export_training", "trainer").train
        return int(train(config, from_export=rows, out=args.out, url=client.url, key=args.key))


def _anew(client: Client, args: argparse.Namespace) -> int:
    """By the trainer that runs. Exit status 1: nothing is left to train on."""
    asked = TrainAnewIn(adapter=args.version, without=args.without, dry_run=args.dry_run)
    plan = client.train_anew(asked)
    would = "would be" if args.dry_run else "are"
    left = "".join(f", {count} left out ({why.replace('_', ' ')})" for why, count in sorted(plan.left_out.items()))
    lines = [
        f"{', '.join(plan.adapters)} {would} taken back; new runs get {plan.start}, and training goes on from it",
        f"{plan.groups} groups of {plan.episodes} episodes {would} trained on anew{left}",
    ]
    if plan.between:
        lines.append(f"with them those of {', '.join(plan.between)}, which training loses with them")
    print(plan.model_dump_json() if args.json else wrapped("\n".join(lines)))
    return 0 if plan.groups else 1


def _agrees() -> bool:
    """Whether the person at the terminal goes on."""
    return input("Go on? [y/N] ").strip().lower() in ("y", "yes")


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        if args.action == "push":
            from slipstream.operate.models.push import push

            place = push(client, read_config(args), args.version, args.to, merged=args.merged)
            print(json.dumps({"pushed": str(place)}) if args.json else place)
            return 0
        if args.action == "retrain":
            return _retrain(client, args)
        if args.action == "replay":
            shown = client.replay_of(args.version)
            return tell(args, shown, replay_text(shown), indent=2)
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
        say(f"{what}; open: runs that go on with it")
    for a in found.adapters:
        if a.kept_from and a.state in (AdapterState.CANDIDATE, AdapterState.LIVE):
            kept = ", ".join(f"{group} gets {to}" for group, to in a.kept_from.items())
            say(f"{a.name} is not for all runs: {kept}")
        if a.given and a.state in (AdapterState.CANDIDATE, AdapterState.LIVE):
            say(f"{a.name} was given by hand to {', '.join(a.given)}: their losses alone do not speak against it")
        if a.state == AdapterState.REFUSED and a.files and was_the_engines(a.reason, a.name):
            say(f"{a.name} was refused because the engine took no adapters: `slipstream adapters promote {a.name}`")
    return 0
