"""``slipstream distill``."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from slipstream.cli.common import add_client, connect, finite, proxy_url, read_config
from slipstream.cli.look.episodes import add_filters, filters
from slipstream.errors import ConfigError, StartError, Unavailable
from slipstream.shared.functions import need
from slipstream.shared.log import setup_logging


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    whose = "the model whose calls are learned from, as the agent called it; default: every stored run"
    parser.add_argument("--from", dest="teacher", metavar="NAME", help=whose)
    own = "your model, a folder or a hub name; default: trainer.model, else engine.model"
    parser.add_argument("--to", metavar="MODEL", help=own)
    parser.add_argument(
        "--method",
        choices=("sft", "dpo", "kto"),
        default="sft",
        help="sft: imitate good runs; dpo: prefer better runs of a task to worse ones, and edits to what they replace; "
        "kto: runs are good or bad. Default: sft",
    )
    parser.add_argument(
        "--min-reward",
        type=finite,
        metavar="X",
        help="the reward from which on a run is good; default: the best runs of each task (sft), the mean (kto)",
    )
    add_filters(parser, model="as --from", reward_min="leaves others out before they are counted: see --min-reward")
    parser.add_argument("--epochs", type=finite, metavar="N", help="at most so many passes over the runs; default: 3")
    parser.add_argument("--from-export", metavar="FILE", help="without a proxy: what `slipstream export` wrote")
    parser.add_argument("--init-adapter", metavar="DIR", help="start from this adapter")
    parser.add_argument("--dry-run", action="store_true", help="say what would be trained on, and what not, and why")
    parser.add_argument("--out", metavar="DIR", help="write the adapter there; default: a new version at the proxy")


def run(args: argparse.Namespace) -> int:
    setup_logging()
    flags = [f"trainer.init_adapter={args.init_adapter}"] if args.init_adapter else []
    config = read_config(args, [*flags, *([f"trainer.model={args.to}"] if args.to else [])])
    if not (config.trainer.model or config.engine.model):
        raise ConfigError("no model of your own: give --to MODEL, or set trainer.model or engine.model")
    distill = need("slipstream_imitation.distill", "trainer").distill
    wanted = filters(args)
    if args.epochs is not None and args.epochs <= 0:
        raise ConfigError(f"--epochs {args.epochs:g}: a number above 0 is needed")
    if args.teacher:
        wanted["model"] = args.teacher
    if args.from_export and {*wanted} - {"model"}:
        raise ConfigError("filters choose from a proxy's store: leave them out beside --from-export")
    with tempfile.TemporaryDirectory(prefix="slipstream-distill-") as folder:
        source = Path(args.from_export) if args.from_export else Path(folder) / "runs.jsonl"
        if not args.from_export:
            _stored(args, wanted, source)
        figures = distill(
            config,
            source,
            method=args.method,
            least=args.min_reward,
            teacher=args.teacher,
            epochs=args.epochs,
            dry_run=args.dry_run,
            out=args.out,
            url=proxy_url(args),
            key=args.key,
        )
    if args.json:
        print(json.dumps(figures))
    elif "adapter" in figures:
        fell = f"loss on held-out runs {figures['loss_base']:.3f} -> {figures['loss']:.3f}"
        print(f"{figures['adapter']} was made from {figures['runs']} runs: {fell}")
        print(
            "next: any vLLM serves this folder as a LoRA; without --out it is the next version at the proxy"
            if args.out
            else "next: `slipstream adapters` says what the gate makes of it"
        )
    return 0


def _stored(args: argparse.Namespace, wanted: dict[str, object], path: Path) -> None:
    """The proxy's runs. Raises ``StartError`` where there are none."""
    with connect(args) as client:
        try:
            with path.open("wb") as file:
                file.writelines(client.export("jsonl", **wanted, temporary=True))
        except Unavailable as e:
            raise StartError(f"{e}; without a proxy give --from-export FILE --out DIR") from e
    if not path.stat().st_size:
        given = {name: getattr(args, name, None) or value for name, value in wanted.items()}
        said = ", ".join(f"{name} {value}" for name, value in given.items())
        which = f" with {said}" if said else ""
        raise StartError(f"no stored run{which}: `slipstream episodes` lists what there is, with each run's model")
