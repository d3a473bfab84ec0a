from __future__ import annotations

import argparse
import asyncio
import sys

from slipstream.cli import common
from slipstream.cli.common import add_config, add_profile, read_config
from slipstream.cli.start.proxy import own_flags
from slipstream.client import AsyncClient
from slipstream.config import Config
from slipstream.operate.run.preflight import check_alone, check_room
from slipstream.operate.run.stack import Stack, start_stack
from slipstream.operate.run.watch import Quiet, watch
from slipstream.shared.log import setup_logging
from slipstream.shared.processes.sidecars import SidecarFile
from slipstream.shared.processes.supervisor import Supervisor


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
    parser.add_argument("--verbose", action="store_true", help="show all that engine, proxy, trainer and judge log")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)


def run(args: argparse.Namespace) -> int:
    setup_logging()
    flags = own_flags(args) + ([f"engine.model={args.model}"] if args.model else [])
    return asyncio.run(up(read_config(args, flags), verbose=args.verbose))


def say(line: str) -> None:
    common.say(f"slipstream: {line}", look=common.TextColour.BAD if line.startswith("! ") else None, file=sys.stderr)
    sys.stderr.flush()


async def events(stack: Stack) -> None:
    async with AsyncClient(stack.url, stack.key) as client:
        await watch(client, say)


async def up(config: Config, *, verbose: bool = False) -> int:
    check_alone(config.root)
    check_room(config.root)
    sidecars = SidecarFile(config.root)
    quiet = Quiet(config.root / "up.log", verbose=verbose)
    supervisor = Supervisor(changed=sidecars, shown=quiet)
    quiet.ending = supervisor.stopping.is_set
    supervisor.handle_signals()
    try:
        stack = await start_stack(config, supervisor, say)
        if not supervisor.stopping.is_set():
            if not verbose:
                say(f"all that engine, proxy, trainer and judge log: {quiet.log}")
                supervisor.watch(events(stack))
            say(f"ready: OPENAI_BASE_URL={stack.url}/v1   page: {stack.url}/")
        return await supervisor.wait()
    finally:
        if supervisor.stopping.is_set():
            say("shutting down; this may take a few seconds")
        await supervisor.stop()
        sidecars.remove()
