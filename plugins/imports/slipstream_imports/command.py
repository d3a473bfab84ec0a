"""Reading logs in: what other programs wrote becomes calls and rewards of episodes, sent through the control API."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli.common import add_client, connect, proxy_url
from slipstream.client import AsyncClient
from slipstream.errors import SlipstreamError

if TYPE_CHECKING:
    from slipstream_chat.report import Report


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="logs in any known form, as JSON, JSON lines or Parquet, packed or not; what export wrote, "
        "or what adapters --json printed",
    )
    parser.add_argument(
        "--from", dest="source", metavar="FORM", help="the form that they have (default: detected), or `list`"
    )
    parser.add_argument("--task", help="task for episodes that name none")
    parser.add_argument(
        "--strict", action="store_true", help="import nothing if anything would be refused, dropped or converted"
    )
    parser.add_argument("--progress", action="store_true", help="show progress even if standard error is no terminal")


def restore_adapters(args: argparse.Namespace, path: Path) -> int | None:
    """None: the file holds something else."""
    with path.open("rb") as file:
        if b'"adapters"' not in file.read(4096):
            return None
    try:
        told = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict) or not isinstance(told.get("adapters"), list):
        return None
    with connect(args) as client:
        client.restore_adapters(told)
    return len(told["adapters"])


def run(args: argparse.Namespace) -> int:
    from slipstream_imports.registry import FORM_MODULES

    if args.source == "list" or (args.source and args.source not in FORM_MODULES):
        if args.source != "list":
            raise SlipstreamError(f"--from {args.source}: known are {', '.join(FORM_MODULES)}")
        print("\n".join(f"{name:14} {what}" for name, what in FORM_MODULES.items()))
        return 0
    paths = [*{Path(name).resolve(): Path(name) for name in args.files}.values()]
    for path in paths:
        if not path.is_file():
            raise SlipstreamError(f"{path}: no such file")
    if len(paths) == 1 and (adapters := restore_adapters(args, paths[0])) is not None:
        print(json.dumps({"adapters": adapters}) if args.json else f"{adapters} adapters")
        return 0
    return _logs(args, paths)


def _logs(args: argparse.Namespace, paths: list[Path]) -> int:
    from slipstream.shared.progress import wanted
    from slipstream_chat.report import Report
    from slipstream_imports.survey import Survey
    from slipstream_imports.upload import bring_in, read_log

    checked, survey = Report(), Survey()
    survey.look(read_log(paths, args.task, checked, args.source))
    if args.strict and not checked.clean:
        _tell(checked)
        raise SlipstreamError("--strict: nothing was imported")
    report = Report()
    entries = read_log(paths, args.task, report, args.source)

    async def send() -> None:
        async with AsyncClient(proxy_url(args), args.key, tenant=args.tenant) as client:
            await bring_in(client, survey, entries, report, wanted(args.progress))

    asyncio.run(send())
    _tell(report)
    print(json.dumps(report.as_json()) if args.json else report.summary())
    return 0 if report.episodes and not (args.strict and report.refused) else 1


def _tell(report: Report) -> None:
    lines = report.lines() or ([] if report.episodes else ["refused: no row in it"])
    for line in lines:
        print(f"slipstream import: {line}", file=sys.stderr)
