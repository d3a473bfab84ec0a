"""``slipstream COMMAND``: one module a subcommand, each with ``add(parser)`` and ``run(args) -> exit code``.

Exit codes: 0 well, 1 something failed, 2 what was asked for cannot be (a setting, a port, a model): one line says why.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from slipstream.errors import ApiError, ConfigError, SlipstreamError, StartError

COMMANDS = {
    "up": "run engine, proxy, judge and trainer on this machine",
    "demo": "watch a small agent get better, with no GPU and no download",
    "proxy": "run the proxy alone",
    "judge": "run a judge, measure one, or judge again",
    "trainer": "run the trainer beside a proxy",
    "train": "train once, or from an export",
    "status": "where things stand, and why there was no step yet",
    "episodes": "list episodes, show one, forget one",
    "adapters": "list, promote, roll back, push",
    "export": "write datasets: parquet, jsonl, sft, dpo",
    "import": "read logs: OpenAI-format JSONL, trajectory Parquet",
    "keys": "add, list, revoke API keys",
    "sql": "ask the store: one SELECT",
    "config": "print the effective configuration",
    "doctor": "check everything, with a fix for each finding",
}


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """``only``: import this command's module and no other, so that help never imports torch, litellm or duckdb."""
    parser = argparse.ArgumentParser(prog="slipstream", description="Your agent's own traffic trains its next version.")
    from slipstream import __version__

    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text)
        if name == only:
            importlib.import_module(f"slipstream.cli.{name.replace('import', 'import_')}").add(sub)
    return parser


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    name = next((a for a in argv if not a.startswith("-")), None)
    parser = build_parser(name if name in COMMANDS else None)
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 2
    module = importlib.import_module(f"slipstream.cli.{args.command.replace('import', 'import_')}")
    try:
        code = int(module.run(args))
        sys.stdout.flush()
        return code
    except (ConfigError, StartError) as e:
        print(f"slipstream {args.command}: {e}", file=sys.stderr)
        return 2
    except ApiError as e:
        fix = f" ({e.fix})" if e.fix else ""
        print(f"slipstream {args.command}: {e}{fix}", file=sys.stderr)
        return 1
    except SlipstreamError as e:
        print(f"slipstream {args.command}: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # who read our output has gone; what Python still flushes at the end goes nowhere, without a complaint
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def entry() -> None:
    sys.exit(main())


if __name__ == "__main__":
    entry()
