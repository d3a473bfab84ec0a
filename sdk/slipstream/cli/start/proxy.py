from __future__ import annotations

import argparse

from slipstream.cli.common import add_config, read_config, settings_path
from slipstream.operate.run.preflight import check_name
from slipstream.shared.functions import need
from slipstream.shared.log import setup_logging


def add(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--engine", metavar="URL", action="append", default=[], help="a vLLM that already runs; repeat it for several"
    )
    parser.add_argument("--name", help="the trained model's name (the base model's name in the engine)")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument(
        "--new-instance",
        action="store_true",
        help="make a copied data_dir a proxy of its own on the PostgreSQL that it shares; its spool is read again",
    )


def own_flags(args: argparse.Namespace) -> list[str]:
    urls = [u.rstrip("/").removesuffix("/v1") for u in args.engine]
    flags = [f"engine.urls={urls}".replace("'", '"')] if urls else []
    flags += [f"engine.name={args.name}"] if args.name else []
    flags += [f"proxy.host={args.host}"] if args.host else []
    return flags + ([f"proxy.port={args.port}"] if args.port is not None else [])


def run(args: argparse.Namespace) -> int:
    setup_logging()
    flags = own_flags(args)
    config = read_config(args, flags)
    if config.engine.urls and not (config.engine.name or config.engine.model):
        config = check_name(config)  # the engine's own name, if it is up
    proxy = need("slipstream_proxy.main", "proxy")
    path = settings_path(args)
    file = proxy.SettingsFile(path.absolute(), lambda: read_config(args, flags)) if path is not None else None
    return int(proxy.run(config, file, new_instance=args.new_instance))
