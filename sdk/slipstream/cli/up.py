from __future__ import annotations

import argparse
import asyncio
import sys

from slipstream.cli.common import add_config, add_profile, read_config
from slipstream.cli.proxy import own_flags
from slipstream.config import Config
from slipstream.log import setup_logging
from slipstream.operate.sidecars import SidecarFile
from slipstream.operate.stack import start_stack
from slipstream.operate.supervisor import Supervisor


def add(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_profile(parser)
    parser.add_argument("--model", metavar="PATH_OR_NAME", help="base model that vLLM serves and the trainer trains")
    parser.add_argument(
        "--engine",
        metavar="URL",
        action="append",
        default=[],
        help="use a vLLM that already runs; repeat it for several",
    )
    parser.add_argument("--name", help="the model's name for clients; default: the last part of --model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)


def run(args: argparse.Namespace) -> int:
    setup_logging()
    flags = own_flags(args) + ([f"engine.model={args.model}"] if args.model else [])
    return asyncio.run(up(read_config(args, flags)))


def say(line: str) -> None:
    print(f"slipstream: {line}", file=sys.stderr, flush=True)


async def up(config: Config) -> int:
    sidecars = SidecarFile(config.root)
    supervisor = Supervisor(changed=sidecars)
    supervisor.handle_signals()
    try:
        stack = await start_stack(config, supervisor, say)
        if not supervisor.stopping.is_set():
            say(f"ready: OPENAI_BASE_URL={stack.url}/v1   page: {stack.url}/")
        return await supervisor.wait()
    finally:
        await supervisor.stop()
        sidecars.remove()
