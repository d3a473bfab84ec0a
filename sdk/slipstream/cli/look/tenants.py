from __future__ import annotations

import argparse
import contextlib
import fcntl
import shutil
import time

from slipstream.cli.common import add_client, connect, read_config, say, table, tell
from slipstream.config import Config
from slipstream.contract import TenantStatus
from slipstream.errors import ConfigError
from slipstream.shared.functions import need
from slipstream.shared.tenant_names import check_tenant_name
from slipstream.tenants import schema_of, tenant_config

WORKERS_KNOW_S = 2.0
"""Seconds within which workers know of a key that is revoked, and leave its tenant's folder."""
END_PATIENCE_S = 60.0
"""Seconds that `remove` waits for the tenant's control plane and its trainer to end."""


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    sub = parser.add_subparsers(dest="action")
    add_client(sub.add_parser("list", help="each with its state, quota and worst trouble (default)"), again=True)
    gone = sub.add_parser("remove", help="revoke its keys, and delete all that it has; export and back up first")
    gone.add_argument("name")
    gone.add_argument("--yes", action="store_true", help="do it; without this it is only said")
    add_client(gone, again=True)


def run(args: argparse.Namespace) -> int:
    if args.action == "remove":
        return _remove(args)
    with connect(args) as client:
        found = client.tenants()
    head = ("tenant", "calls", "runs", "live", "hits", "loads", "waits", "quota used", "worst")
    rows = [_row(one) for one in found.tenants]
    return tell(args, found, table(head, rows, {"worst": 20, "live": 12}) if rows else "there are no tenants")


def _row(one: TenantStatus) -> tuple[object, ...]:
    used = [
        f"{what.removesuffix('_per_day')} {one.used.get(what, 0):,.10g}/{most:,.10g}"
        for what, most in one.quota.items()
    ]
    live, worst = ", ".join(one.live.values()), one.trouble or "-"
    use, said = one.adapter_use, worst if one.running else one.reason
    counts = (use.hits, use.loads, use.waits)
    return one.name, one.calls, one.episodes, live or "-", *counts, ", ".join(used) or "-", said


def _remove(args: argparse.Namespace) -> int:
    """On the proxy's machine: keys and folders are its own."""
    check_tenant_name(args.name)
    config = read_config(args)
    if args.name in config.tenants:
        raise ConfigError(f'[tenants."{args.name}"] declares it: take that out of the settings file first')
    own = tenant_config(config, args.name)
    if not own.root.exists():
        raise ConfigError(f"there is no tenant {args.name}: {own.root} is not there")
    keys = need("slipstream_proxy.keys", "proxy").Keys(config.keys_file)
    mine = [k for k in keys.list() if k.tenant == args.name]
    if not args.yes:
        kept = f"`slipstream --tenant {args.name} backup` keeps it"
        tables = f", and the schema {schema_of(args.name)}" if own.store_url.startswith("postgres") else ""
        say(f"{_keys(len(mine))} would be revoked, and {own.root}{tables} deleted: give --yes. {kept}")
        return 0
    for key in mine:
        keys.revoke(key.id)
    until = time.monotonic() + END_PATIENCE_S
    while own.socket.exists() and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(WORKERS_KNOW_S)
    if own.socket.exists():
        text = f"its control plane has not ended: {own.root} stays, and its keys are revoked"
        raise ConfigError(f"{text}. Run this again, or after a restart of the proxy")
    while _trains(own):
        if time.monotonic() > until:
            raise ConfigError(f"a trainer still works in {own.checkpoints_dir}: run this again once its step is over")
        time.sleep(0.2)
    if own.store_url.startswith("postgres"):
        postgres = need("slipstream_proxy.store.backends.postgres", "proxy")
        if why := postgres.drop_schema(own.store_url, schema_of(args.name)):
            text = f"its tables in PostgreSQL stay, and so does {own.root}; its keys are revoked: {why}"
            raise ConfigError(f"{text}. Run this again once that is mended")
    shutil.rmtree(own.root)
    if own.adapters_dir.exists():
        shutil.rmtree(own.adapters_dir)
    keys.note_removal(args.name)
    say(f"the tenant {args.name} is gone, with its runs, its adapters and {_keys(len(mine))}")
    if own.store_url.startswith("postgres"):
        say("another proxy on this database has keys of its own, and goes on with it: run this there, too")
    return 0


def _keys(count: int) -> str:
    return f"{count} key{'s' * (count != 1)}"


def _trains(own: Config) -> bool:
    """Whether its trainer has not ended yet: it holds the lock in its folder until then, and would write there."""
    with contextlib.suppress(FileNotFoundError), (own.checkpoints_dir / "lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
