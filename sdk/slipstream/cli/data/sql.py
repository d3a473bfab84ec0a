from __future__ import annotations

import argparse
import sys

from slipstream.cli.common import add_client, connect, fits, records, table
from slipstream.contract import Sql


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("query", help="one SELECT over episodes, calls, messages, rewards, adapters (docs/sql.md)")
    parser.add_argument("--limit", type=int, default=1000)


def run(args: argparse.Namespace) -> int:
    Sql(query=args.query, limit=args.limit)
    with connect(args) as client:
        result = client.sql(args.query, args.limit)
    if args.json:
        print(result.model_dump_json())
        return 0
    print((table if fits(len(result.columns)) else records)(result.columns, result.rows))
    if result.truncated:
        print(f"(cut at {args.limit} rows: --limit)", file=sys.stderr)
    return 0
