from __future__ import annotations

import argparse
import os
from pathlib import PurePath

from slipstream.cli.common import add_config

SHELL_NAMES = ("bash", "zsh", "fish", "powershell")


def add(parser: argparse.ArgumentParser) -> None:
    add_config(parser)  # has no effect here, and is no shell's name
    parser.add_argument("shell", nargs="?", choices=SHELL_NAMES, help="default: the shell in SHELL")
    parser.epilog = 'bash and zsh: eval "$(slipstream completion)"; fish: slipstream completion fish | source'


def run(args: argparse.Namespace) -> int:
    import argcomplete

    own = PurePath(os.environ.get("SHELL", "bash")).name
    print(argcomplete.shellcode(["slipstream"], shell=args.shell or (own if own in SHELL_NAMES else "bash")))
    return 0
