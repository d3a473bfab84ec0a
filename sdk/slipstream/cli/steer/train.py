from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from slipstream.cli.common import add_config, add_json, add_url, connect, proxy_url, read_config, tell
from slipstream.cli.look.episodes import add_filters, filters
from slipstream.contract import TrainAgain, TrainAgainIn
from slipstream.errors import ConfigError
from slipstream.shared.functions import need
from slipstream.shared.log import setup_logging

LEFT_OUT = {
    "trained": "trained on often enough with these rewards (--epochs raises it)",
    "equal_rewards": "all their rewards are equal, so they teach nothing",
    "not_scored": "a run has no reward yet, or is still open",
    "waiting_reward": "a run has no reward yet",
    "forming": "not complete yet",
    "leased": "the trainer has them",
    "eval": "evaluation runs never train",
    "sibling": "samples beside an agent's step train once, while they are new",
    "rolled_back": "a version that was taken back sampled them",
    "nothing_trainable": "no call in them can be trained on",
}


def add(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_url(parser)
    add_json(parser)
    parser.add_argument("--once", action="store_true", help="take one step on the groups that wait, then exit")
    parser.add_argument("--from-export", metavar="FILE", help="train offline on what `slipstream export` wrote")
    parser.add_argument(
        "--from-store",
        action="store_true",
        help="have the running trainer retrain on stored groups that contain such a run, then exit",
    )
    parser.add_argument(
        "--epochs",
        type=int,
        metavar="N",
        help="with --from-store: until each was trained on N times with the rewards that it has now; default: 1, what "
        "never was",
    )
    parser.add_argument("--dry-run", action="store_true", help="with --from-store: say what would be trained on")
    parser.add_argument("--stop", action="store_true", help="with --from-store: train on no stored group again")
    add_filters(parser)
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--init-adapter", metavar="DIR", help="start from this adapter")
    parser.add_argument("--out", metavar="DIR", help="where the adapter goes; default: the adapters folder")


def run(args: argparse.Namespace) -> int:
    if args.from_store:
        return _from_store(args)
    if filters(args) or args.epochs is not None or args.dry_run or args.stop:
        raise ConfigError("filters, --epochs, --dry-run and --stop say what of the store to train on: add --from-store")
    setup_logging()
    config = read_config(args, [f"trainer.init_adapter={args.init_adapter}"] if args.init_adapter else [])
    train = need("slipstream_trainer.run.export_training", "trainer").train
    export = Path(args.from_export) if args.from_export else None
    own = {"once": args.once, "resume": args.resume, "out": args.out}
    return int(train(config, from_export=export, url=proxy_url(args), key=args.key, **own))


def _from_store(args: argparse.Namespace) -> int:
    """Exit status 1: there is nothing to train on."""
    if args.once or args.from_export or args.resume or args.init_adapter or args.out:
        raise ConfigError("--from-store is the running trainer's work: leave out the options of a training of its own")
    if args.stop and (args.epochs is not None or args.dry_run or filters(args)):
        raise ConfigError("--stop ends all training on stored groups: leave out --epochs, --dry-run and filters")
    with connect(args) as client:
        if args.stop:
            stopped = client.stop_training_again()
            return tell(args, stopped, f"{stopped.groups} groups are not trained on again")
        asked = TrainAgainIn(epochs=args.epochs if args.epochs is not None else 1, dry_run=args.dry_run)
        plan = client.train_again(asked, **filters(args))
    tell(args, plan, "\n".join(_told(plan, dry_run=args.dry_run)))
    return 0 if plan.groups else 1


def _told(plan: TrainAgain, *, dry_run: bool) -> Iterator[str]:
    would = "would go" if dry_run else "go"
    yield f"{plan.groups} groups of {plan.episodes} episodes {would} to the trainer, {plan.passes} passes in all"
    if plan.corrected:
        yield f"  {plan.corrected} of them had other rewards when they were trained on"
    for why, count in sorted(plan.left_out.items()):
        yield f"  {count} left out: {LEFT_OUT.get(why, why.replace('_', ' '))}"
    if plan.groups and not dry_run:
        yield "`slipstream status` shows the progress"
