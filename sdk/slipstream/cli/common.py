"""What several commands share: the configuration's flags, the proxy's address, tables."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from slipstream.client import Client
from slipstream.config import Config, load_config
from slipstream.errors import ConfigError, StartError
from slipstream.operate.stack import CONFIG_ENV


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="TOML file; default: slipstream.toml here, if there is one")
    parser.add_argument("--set", metavar="SECTION.NAME=VALUE", action="append", default=[], help="override one setting")


def read_config(args: argparse.Namespace, flags: Iterable[str] = ()) -> Config:
    """File, environment and flags; ``flags`` are what the command's own options stand for."""
    base: dict[str, Any] | None = None
    if handed := os.environ.get(CONFIG_ENV):
        try:
            base = json.loads(handed)
        except ValueError as e:
            raise ConfigError(f"environment {CONFIG_ENV}: not JSON: {e}") from e
    path = args.config or ("slipstream.toml" if Path("slipstream.toml").is_file() and base is None else None)
    return load_config(path, flags=[*flags, *args.set], base=base)


def child_env(config: Config) -> dict[str, str]:
    """What a child needs to see the same configuration."""
    return {CONFIG_ENV: config.model_dump_json()}


def add_client(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="the proxy (SLIPSTREAM_URL, OPENAI_BASE_URL; default http://127.0.0.1:8100)")
    parser.add_argument("--key", help="an API key (SLIPSTREAM_API_KEY)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def connect(args: argparse.Namespace) -> Client:
    return Client(args.url, args.key)


def need(module: str, extra: str) -> ModuleType:
    """Import a part of the distribution whose extra may not be installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        raise StartError(f"{e.name} is not installed: pip install 'slipstream[{extra}]'") from e


def when(at: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else "-"


def number(x: float | None, digits: int = 3) -> str:
    return "-" if x is None else f"{x:.{digits}f}"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns aligned by their widest cell."""
    cells = [list(header), *([str(c) for c in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)
