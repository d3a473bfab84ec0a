from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from slipstream.cli.common import add_client, connect, read_config, wrapped
from slipstream.client import Client
from slipstream.contract import TrainAnewIn
from slipstream.errors import ConfigError
from slipstream.shared.functions import need
from slipstream_models.retrain import plan_of, write_rows


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("version", nargs="?", help="the first to be made anew; default: the first trained on EPISODE")
    parser.add_argument("--without", nargs="+", default=[], metavar="EPISODE", help="ids of episodes to leave out")
    parser.add_argument("--offline", action="store_true", help="train here, and leave what is served as it is")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="train here, as --offline does, and write the adapter to DIR"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be trained on, and train nothing")
    add_client(parser, again=True)


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        return _retrain(client, args)


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
