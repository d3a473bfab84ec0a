from __future__ import annotations

import argparse
import asyncio

from slipstream.cli.common import add_config, add_url, proxy_url
from slipstream.client import AsyncClient
from slipstream.operate.run.watch import to_stdout, watch


def add(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_url(parser)


def run(args: argparse.Namespace) -> int:
    async def follow() -> None:
        async with AsyncClient(proxy_url(args), args.key) as client:
            await watch(client, to_stdout)

    asyncio.run(follow())
    return 0
