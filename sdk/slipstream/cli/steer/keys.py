from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from slipstream.cli.common import add_config, add_json, age, finite, read_config, say, table
from slipstream.config import Config
from slipstream.contract import KeyScope
from slipstream.errors import ConfigError
from slipstream.shared.functions import need
from slipstream.shared.processes.proxy_file import running_proxy
from slipstream.shared.tenant_names import check_tenant_name


def add(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--url", help="URL of the proxy whose keys to manage; refused if this folder belongs to another proxy"
    )
    parser.add_argument("--tenant", help="the owning tenant; with add, a new name creates one")
    add_json(parser)
    sub = parser.add_subparsers(dest="action", required=True)
    new = sub.add_parser("add", help="create a key; it is shown once")
    new.add_argument("name")
    new.add_argument("--scopes", default="inference,reward", help=f"of {', '.join(KeyScope)}; default inference,reward")
    new.add_argument("--rate", type=finite, help="requests a second")
    new.add_argument("--concurrency", type=int, help="requests at once")
    sub.add_parser("list", help="list keys with name, scopes, limits and age, never the secrets")
    turn = sub.add_parser("rotate", help="give a key another secret; its runs, rewards and limits stay its own")
    turn.add_argument("key", metavar="NAME", help="its name or id")
    grace = "seconds for which the old secret is still taken; default 3600"
    turn.add_argument("--grace", type=finite, default=3600.0, help=grace)
    gone = sub.add_parser("revoke", help="revoke a key at once")
    gone.add_argument("key", metavar="NAME", help="its name or id")
    for verb in sub.choices.values():
        add_config(verb, again=True)
        add_json(verb, again=True)


def check_folder(args: argparse.Namespace, config: Config, serving: str | None) -> None:
    """Keys stand in a folder, other commands ask a URL. Raises ``ConfigError`` where that proxy has another folder."""
    asked = args.url or (None if args.config or args.set else os.environ.get("SLIPSTREAM_URL"))
    if asked is None or (serving is not None and same_proxy(asked, serving)):
        return
    has = f"the proxy of that folder is {serving}" if serving else "no proxy runs on that folder"
    raise ConfigError(
        f"keys are stored in {config.keys_file}, and {has}, not {asked}: run this where that proxy runs, with its "
        "settings (--config FILE, or --set data_dir=FOLDER)"
    )


def same_proxy(asked: str, serving: str) -> bool:
    """Another name of this machine, or a tunnel, cannot be told from another proxy by its port: the port counts."""
    one, other = urlsplit(asked), urlsplit(serving)
    return one.port == other.port or asked.rstrip("/").removesuffix("/v1") == serving.rstrip("/")


def limits(rate: float | None, concurrency: int | None) -> str:
    """What a key may ask for."""
    found = [f"{rate:g} a second"] if rate is not None else []
    found += [f"{concurrency} at once"] if concurrency is not None else []
    return ", ".join(found) or "none"


def run(args: argparse.Namespace) -> int:
    config = read_config(args)
    serving = running_proxy(config.root)
    check_folder(args, config, serving)
    keys = need("slipstream_proxy.keys", "proxy").Keys(config.keys_file)
    if args.tenant is not None:
        check_tenant_name(args.tenant)
    if args.action == "add":
        scopes = [s.strip() for s in args.scopes.split(",") if s.strip()]
        if unknown := [s for s in scopes if s not in tuple(KeyScope)]:
            raise ConfigError(f"no such scope: {', '.join(unknown)}; there are {', '.join(KeyScope)}")
        limits = {"rate": args.rate, "concurrency": args.concurrency}
        key_id, secret = keys.add(args.name, scopes, **limits, tenant=args.tenant or "")
        if args.json:
            print(json.dumps({"id": key_id, "key": secret, "name": args.name, "scopes": scopes}))
            return 0
        print(f"{secret}\n(id {key_id}; only its hash is kept, in {keys.path}, so write it down now)")
        if serving is None:
            say(
                f"no proxy runs on {config.root}: the key takes effect once a proxy starts with this data_dir",
                file=sys.stderr,
            )
        elif len([k for k in keys.list() if not k.name.startswith("up-")]) == 1:
            say(
                f"this is the first key, so the proxy at {serving} asks everybody for one from now on: give it to your "
                "agents (OPENAI_API_KEY, or in place of the api_key that their code names) and to the commands "
                "(SLIPSTREAM_API_KEY, or --key)",
                file=sys.stderr,
            )
        return 0
    if args.action == "revoke":
        key = _of_tenant(keys.named(args.key), args.tenant)
        keys.revoke(key.id)
        print(json.dumps({"revoked": key.id}) if args.json else f"revoked {key.id} ({key.name})")
        if not len(keys):
            print(
                "it was the last key: a proxy that runs goes on asking for one until it is started again, so make "
                "another (slipstream keys add), or restart it",
                file=sys.stderr,
            )
        return 0
    if args.action == "rotate":
        key = _of_tenant(keys.named(args.key), args.tenant)
        secret = keys.rotate(key.id, args.grace)
        if args.json:
            print(json.dumps({"id": key.id, "key": secret, "name": key.name, "grace": args.grace}))
            return 0
        print(f"{secret}\n(id {key.id}, as before; only its hash is kept, so write it down now)")
        until = f"is taken for another {args.grace:g} s" if args.grace else "is not taken any more"
        say(f"the old secret {until}", file=sys.stderr)
        return 0
    return _list([k for k in keys.list() if args.tenant in (None, k.tenant)], as_json=args.json)


def _of_tenant(key: Any, tenant: str | None) -> Any:
    """The key. Raises ``ConfigError``: it is none of the tenant that was named."""
    if tenant in (None, key.tenant):
        return key
    whose = f"of the tenant {key.tenant}" if key.tenant else "of no tenant"
    raise ConfigError(f"the key {key.name} is {whose}, not of {tenant}")


def _cells(key: Any) -> dict[str, str]:
    return {
        "id": key.id,
        "name": key.name,
        "tenant": key.tenant or "-",
        "scopes": ",".join(key.scopes),
        "limits": limits(key.rate, key.concurrency),
        "age": age(key.created, time.time()),
    }


def _list(known: Sequence[Any], *, as_json: bool) -> int:
    """``known``: as the key file has them."""
    if as_json:
        found = [
            {
                "id": k.id,
                "name": k.name,
                "scopes": list(k.scopes),
                "rate": k.rate,
                "concurrency": k.concurrency,
                "created": k.created,
                "tenant": k.tenant,
            }
            for k in known
        ]
        print(json.dumps(found))
        return 0
    any_tenant = any(k.tenant for k in known)
    shown = [name for name in ("id", "name", "tenant", "scopes", "limits", "age") if name != "tenant" or any_tenant]
    cells = [_cells(k) for k in known]
    print(table(shown, [[cell[name] for name in shown] for cell in cells], {"scopes": 16, "name": 12, "limits": 12}))
    return 0
