from __future__ import annotations

import argparse
import time

from slipstream.cli.common import add_client, add_since, age, connect, since, table, tell
from slipstream.contract import AuditEntry


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument(
        "--action",
        help="only entries of this kind: promote, demote, freeze, label, delete, key_add, key_revoke, pause, …",
    )
    parser.add_argument("--target", help="only entries about this adapter, episode or key")
    add_since(parser)
    parser.add_argument("--limit", type=int, default=50, help="how many entries, newest first (default 50)")


MIN_COLUMN_WIDTHS = {"with": 16, "who": 8, "on": 12}


def line(entry: AuditEntry, now: float) -> tuple[object, ...]:
    who = entry.name or entry.key or "-"
    said = ", ".join(f"{name}: {value}" for name, value in entry.detail.items() if value not in (None, "", []))
    return age(entry.at, now), who, entry.action, entry.target, said


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        page = client.audit(action=args.action, target=args.target, since=since(args), limit=args.limit)
    rows = [line(entry, time.time()) for entry in page.entries]
    return tell(args, page, table(("age", "who", "what", "on", "with"), rows, MIN_COLUMN_WIDTHS), indent=2)
