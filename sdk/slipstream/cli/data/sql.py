from __future__ import annotations

import argparse
import sys

from pydantic import ValidationError

from slipstream.cli.common import add_client, connect, table
from slipstream.contract import Sql
from slipstream.errors import ConfigError


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("query", help="one SELECT over episodes, calls, messages, rewards, adapters (docs/sql.md)")
    parser.add_argument("--limit", type=int, default=1000)


def run(args: argparse.Namespace) -> int:
    try:
        Sql(query=args.query, limit=args.limit)
    except ValidationError as e:
        raise ConfigError("; ".join(f"{x['loc'][0]}: {x['msg']}" for x in e.errors())) from e
    with connect(args) as client:
        result = client.sql(args.query, args.limit)
    if args.json:
        print(result.model_dump_json())
        return 0
    print(table(result.columns, result.rows))
    if result.truncated:
        print(f"(cut at {args.limit} rows: --limit)", file=sys.stderr)
    return 0
