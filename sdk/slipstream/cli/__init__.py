"""``slipstream COMMAND``: one module a subcommand, each with ``add(parser)`` and ``run(args) -> exit code``.

Exit codes: 0 well, 1 something failed, 2 what was asked for cannot be (a setting, a port, a model): one line says why.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence

from pydantic import ValidationError

from slipstream.cli.common import hoist
from slipstream.errors import ApiError, ConfigError, SlipstreamError, StartError
from slipstream.shared.functions import module_in, other_system
from slipstream.shared.printable import printing

COMMAND_MODULES = {
    "init": "write a slipstream.toml for this machine and your agent",
    "connect": "connect a coding agent, for one run or in its own configuration",
    "up": "run engine, proxy, judge and trainer on this machine",
    "demo": "watch a small agent get better, with no GPU and no download",
    "proxy": "run the proxy alone",
    "judge": "run a judge, measure one, or judge again",
    "trainer": "run the trainer beside a proxy",
    "train": "train once, or from an export",
    "status": "where things stand, and why there was no step yet",
    "watch": "see steps, verdicts and errors of a running proxy as they come",
    "episodes": "list episodes, show one",
    "distill": "train your own model on stored runs of another one",
    "feedback": "say what was wrong with a run or a call, in words",
    "cases": "keep episodes as sets of cases for a replay",
    "replay": "compare a new version with the old one on recorded cases",
    "forget": "forget episodes: by id, key, tags or user",
    "adapters": "list, promote, demote, freeze, push",
    "export": "write datasets: parquet, jsonl, sft, dpo",
    "backup": "back up everything into one file, while it runs",
    "import": "read logs: OpenAI-format JSONL, trajectory Parquet",
    "keys": "add, list, revoke API keys",
    "cost": "tokens, GPU seconds and the judge's dollars by version, task or tag",
    "audit": "who promoted, rolled back, labelled, deleted or made keys",
    "pause": "pause training",
    "resume": "resume training",
    "annotate": "write a note on the charts' time axis",
    "sql": "run one SELECT on the store",
    "config": "print the effective configuration",
    "doctor": "check everything, with a fix for each finding",
    "completion": "print the script for tab completion in your shell",
}


COMMAND_ROOMS = ("start", "data", "manage")
ERROR_FIXES = {
    errno.EROFS: ": give a data_dir that can be written",
    errno.EACCES: ": give a data_dir that this user may write",
    errno.ENOSPC: ": make room, or give a data_dir on a larger disk",
}


def module_of(command: str) -> str:
    """The module of a command, in whatever room it lies."""
    return module_in("slipstream.cli", COMMAND_ROOMS, command.replace("import", "import_"))


def build_parser(*commands: str) -> argparse.ArgumentParser:
    """With the arguments of ``commands``. Other modules are not imported: help needs no torch, litellm or duckdb."""
    parser = argparse.ArgumentParser(prog="slipstream", description="Your agent's own traffic trains its next version.")
    from slipstream import __version__

    parser.add_argument("--version", action="version", version=__version__)
    found = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in COMMAND_MODULES.items():
        sub = found.add_parser(name, help=text, description=text, allow_abbrev=False)
        if name in commands:
            importlib.import_module(module_of(name)).add(sub)
    return parser


def complete() -> None:
    """Answer the shell, where it asks for completions (``slipstream completion``); it ends the process then."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(build_parser(*COMMAND_MODULES))


def _print_anywhere() -> None:
    """What a terminal's encoding does not have is written as an escape: it must not end a command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _refused(error: ValidationError, argv: Sequence[str]) -> str:
    """What a request's model refuses, by the names of the options that were given."""
    given, said = {word.split("=")[0] for word in argv}, []
    for found in error.errors():
        name = str(found["loc"][0]) if found["loc"] else ""
        option = f"--{name.replace('_', '-')}"
        text = found["msg"].removeprefix("Value error, ")
        said.append(f"{option if option in given else name}: {text}" if name else text)
    return "; ".join(said)


def main(argv: list[str] | None = None) -> int:
    complete()
    _print_anywhere()
    with printing(sys.stdout, sys.stderr):
        return _main(hoist(sys.argv[1:] if argv is None else argv))


def _main(argv: list[str]) -> int:
    parser = build_parser(*argv[:1]) if argv[:1] and argv[0] in COMMAND_MODULES else build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 2
    module = importlib.import_module(module_of(args.command))
    try:
        code = int(module.run(args))
        sys.stdout.flush()
        return code
    except (ConfigError, StartError) as e:
        print(f"slipstream {args.command}: {e}", file=sys.stderr)
        return 2
    except ValidationError as e:
        print(f"slipstream {args.command}: {_refused(e, argv)}", file=sys.stderr)
        return 2
    except ApiError as e:
        fix = f" ({e.fix})" if e.fix else ""
        print(f"slipstream {args.command}: {e}{fix}", file=sys.stderr)
        return 1
    except SlipstreamError as e:
        print(f"slipstream {args.command}: {e}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as e:
        if (text := other_system(e)) is None:
            raise
        print(f"slipstream {args.command}: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # who read our output has gone; what Python still flushes at the end goes nowhere, without a complaint
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as e:
        # a folder that is read-only, full or another's: the place and the reason, no traceback
        where = f"{e.filename}: " if e.filename else ""
        print(
            f"slipstream {args.command}: {where}{e.strerror or e}{ERROR_FIXES.get(e.errno or 0, '')}", file=sys.stderr
        )
        return 1
