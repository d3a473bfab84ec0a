"""``slipstream COMMAND``: one module a subcommand, with ``add(parser)`` and ``run(args) -> exit code``.

``CORE_COMMANDS`` is the list: a command names its group. Plug-ins bring more (``slipstream.plugins``).

Exit codes: 0 well, 1 something failed, 2 what was asked for cannot be (a setting, a port, a model): one line says why.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from http import HTTPStatus
from types import ModuleType

from pydantic import ValidationError

from slipstream.cli.common import OLD_NAMES_GO, hoist, positions
from slipstream.errors import ApiError, ConfigError, SlipstreamError, StartError
from slipstream.plugins import Command, plugin_commands
from slipstream.shared.functions import other_system
from slipstream.shared.printable import printing

COMMAND_GROUPS = {
    "start": "Start",
    "look": "Look",
    "steer": "Steer",
    "data": "Data",
}
"""In the order of ``slipstream --help``."""
CORE_COMMANDS = {
    "init": Command("start", "write a slipstream.toml for this machine"),
    "up": Command("start", "run engine, proxy, judge and trainer on this machine"),
    "doctor": Command("start", "check everything, with a fix for each finding"),
    "demo": Command("start", "watch a small agent get better, with no GPU and no download"),
    "proxy": Command("start", "run the proxy alone"),
    "judge": Command("start", "run a judge, measure one, or judge again"),
    "trainer": Command("start", "run the trainer beside a proxy"),
    "completion": Command("start", "print the script for tab completion in your shell"),
    "status": Command("look", "where things stand and what is wrong, worst first (--follow)"),
    "episodes": Command("look", "list episodes, show one"),
    "cost": Command("look", "tokens, GPU seconds, the judge's dollars: by version, task or tag"),
    "audit": Command("look", "who promoted, demoted, labelled, deleted or made keys"),
    "tenants": Command("look", "who shares this proxy: state, quota, worst trouble; remove one"),
    "config": Command("look", "print the settings in effect; --all includes rarely used ones"),
    "adapters": Command("steer", "list versions; promote, demote, freeze, push"),
    "feedback": Command("steer", "say what was wrong with a run or a call, in words"),
    "pause": Command("steer", "pause training"),
    "resume": Command("steer", "resume training"),
    "train": Command("steer", "train once, from an export, or on stored runs again"),
    "annotate": Command("steer", "write a note on the charts' time axis"),
    "keys": Command("steer", "add, list, rotate, revoke API keys"),
    "sql": Command("data", "run one SELECT on the store"),
    "forget": Command("data", "forget episodes: by id, key, tags or user"),
}
OLD_NAMES = {
    ("watch",): ("status", "--follow"),
    ("adapters", "rollback"): ("adapters", "demote"),
}
"""What still works for one release, with a note: (command, verb) → what stands in their place."""
ERROR_FIXES = {
    errno.EROFS: ": give a data_dir that can be written",
    errno.EACCES: ": give a data_dir that this user may write",
    errno.ENOSPC: ": make room, or give a data_dir on a larger disk",
}
HELP_INDENT = "  "


def all_commands() -> dict[str, Command]:
    """Ours first, then those of plug-ins, which cannot take the name of one of ours."""
    return CORE_COMMANDS | {name: c for name, c in plugin_commands().items() if name not in CORE_COMMANDS}


def module_of(command: str) -> str:
    found = all_commands()[command]
    return found.module or f"slipstream.cli.{found.group}.{command}"


def command_module(command: str) -> ModuleType:
    """Raises ``StartError`` where a plug-in's module cannot be imported."""
    try:
        return importlib.import_module(module_of(command))
    except Exception as e:  # a stranger's module may fail in any way
        if command in CORE_COMMANDS:
            raise
        raise StartError(f"the plug-in's module {module_of(command)} can't be imported: {e}") from e


def renamed(argv: Sequence[str]) -> list[str]:
    """Old names as they are called now, with a note on stderr. ``argv``: as ``hoist`` leaves it."""
    words = list(argv)
    for old, new in OLD_NAMES.items():
        at = positions(words)[: len(old)]
        if tuple(words[i] for i in at) != old:
            continue
        said = f"slipstream {' '.join(old)} is now `slipstream {' '.join(new)}`"
        print(f"{said}; the old name will be removed in release {OLD_NAMES_GO}", file=sys.stderr)
        for i, word in zip(at, new, strict=False):
            words[i] = word
        words[at[-1] + 1 : at[-1] + 1] = new[len(old) :]
    return words


class GroupedParser(argparse.ArgumentParser):
    """Its help names the commands by their groups."""

    def format_help(self) -> str:
        width = shutil.get_terminal_size().columns
        column = max(map(len, all_commands())) + 2 * len(HELP_INDENT)
        lines = [self.format_usage().rstrip(), "", str(self.description)]
        for group, title in COMMAND_GROUPS.items():
            lines += ["", title]
            for name, command in all_commands().items():
                if command.group == group:
                    first = f"{HELP_INDENT}{name}".ljust(column)
                    lines += textwrap.wrap(command.text, width, initial_indent=first, subsequent_indent=" " * column)
        lines += ["", "`slipstream COMMAND --help` says what a command takes."]
        return "\n".join(lines) + "\n"


def build_parser(*commands: str) -> argparse.ArgumentParser:
    """With the arguments of ``commands``. Other modules are not imported: help needs no torch, litellm or duckdb."""
    parser = GroupedParser(prog="slipstream", description="Your agent's own traffic trains its next version.")
    from slipstream import __version__

    parser.add_argument("--version", action="version", version=__version__)
    found = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=argparse.ArgumentParser)
    for name, command in all_commands().items():
        sub = found.add_parser(name, help=command.text, description=command.text, allow_abbrev=False)
        if name in commands:
            command_module(name).add(sub)
    return parser


def complete() -> None:
    """Answer the shell, where it asks for completions (``slipstream completion``); it ends the process then."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(build_parser(*all_commands()))


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
        return _main(renamed(hoist(sys.argv[1:] if argv is None else argv)))


def _main(argv: list[str]) -> int:
    try:
        parser = build_parser(*argv[:1]) if argv[:1] and argv[0] in all_commands() else build_parser()
    except StartError as e:
        print(f"slipstream {argv[0]}: {e}", file=sys.stderr)
        return 2
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 2
    module = command_module(args.command)
    try:
        code = int((getattr(args, "run_verb", None) or module.run)(args))
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
        if e.status == HTTPStatus.UNAUTHORIZED:
            fix = " (set SLIPSTREAM_API_KEY, or give --key: `slipstream keys list` shows which there are)"
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
