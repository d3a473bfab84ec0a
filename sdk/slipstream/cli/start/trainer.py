from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from slipstream.cli.common import add_config, add_url, child_env, proxy_url, read_config
from slipstream.errors import StartError
from slipstream.shared.functions import need
from slipstream.shared.log import setup_logging
from slipstream.shared.processes.proxy_file import SETTLED_FILE, running_proxy


def add(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_url(parser)
    parser.add_argument("--model", help="folder or hub name of the base weights")
    parser.add_argument("--wait", action="store_true", help="for the proxy of this data folder, until it serves")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="data-parallel processes (torchrun)")


PROXY_POLL_INTERVAL_S = 0.1
"""Seconds between two looks for the proxy."""


MAX_RESTARTS = 3
"""How often torchrun starts all processes again, from the last step, after one of them has died."""
OWN_RENDEZVOUS_ENV = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Set to 1, the processes of each start meet in a store of their own. In torchrun's (2.13) are the addresses of those
before, to which some then connect in vain.
"""


def torchrun(args: argparse.Namespace) -> list[str]:
    """The same command again, ``--processes`` times side by side; the configuration goes by environment."""
    count = [f"--nproc-per-node={args.processes}", f"--max-restarts={MAX_RESTARTS}"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", *count]
    where = ["--wait"] if args.wait else ["--url", url] if (url := proxy_url(args)) else []
    return [*launcher, "-m", "slipstream.cli", "trainer", *where]


def waited_for(root: Path) -> str:
    """The URL of the proxy on this data folder, as soon as there is one."""
    while (url := running_proxy(root)) is None:
        time.sleep(PROXY_POLL_INTERVAL_S)
    return url


def wait_for_room(root: Path, *, proxy: bool) -> None:
    """Until the engine has its memory, or, with ``proxy``, there is one: the model can be loaded."""
    while not (root / SETTLED_FILE).exists() and not (proxy and running_proxy(root) is not None):
        time.sleep(PROXY_POLL_INTERVAL_S)


def run(args: argparse.Namespace) -> int:
    setup_logging()
    config = read_config(args, [f"trainer.model={args.model}"] if args.model else [])
    if (config.trainer.model or config.engine.model) is None:
        raise StartError("no model: give --model, or trainer.model in the configuration")
    if args.processes > 1 and "RANK" not in os.environ:
        os.environ.update(child_env(config) | {OWN_RENDEZVOUS_ENV: "1"})
        if args.key:  # not in argv, where every user of the machine sees it
            os.environ["SLIPSTREAM_API_KEY"] = args.key
        os.execv(sys.executable, torchrun(args))  # noqa: S606
    url = None if args.wait else proxy_url(args)  # a folder of another user is told at once
    process = need("slipstream_trainer.run.process", "trainer")
    need("slipstream_trainer.run.start", "trainer")  # torch and TRL, before the wait
    if url is None:
        wait_for_room(config.root, proxy=not args.wait)  # `up` starts the proxy beside the engine
    return int(process.main(config, lambda: url or waited_for(config.root), args.key))
