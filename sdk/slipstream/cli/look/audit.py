from __future__ import annotations

import argparse

from slipstream.cli.common import add_client, add_since, connect, since, table, tell, when
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


def line(entry: AuditEntry) -> tuple[object, ...]:
    who = entry.name or entry.key or "-"
    said = ", ".join(f"{name}: {value}" for name, value in entry.detail.items() if value not in (None, "", []))
    return when(entry.at), who, entry.action, entry.target, said


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        page = client.audit(action=args.action, target=args.target, since=since(args), limit=args.limit)
    return tell(args, page, table(("when", "who", "what", "on", "with"), map(line, page.entries)), indent=2)
