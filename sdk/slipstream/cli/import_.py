"""Reading logs in: each line or row becomes calls of an episode, sent through the proxy's control API."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from slipstream.cli.common import add_client, connect, proxy_url
from slipstream.client import AsyncClient
from slipstream.errors import SlipstreamError
from slipstream.operate.logs import read_log
from slipstream.operate.progress import wanted
from slipstream.operate.trace_files import read_traces, tool_of
from slipstream.operate.upload import upload


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument(
        "file",
        help="JSONL of OpenAI-format conversations or request/response logs, ART's trajectories (JSONL or Parquet), "
        "what export --format jsonl or parquet wrote, or what adapters --json printed (.json)",
    )
    parser.add_argument(
        "--from",
        dest="source",
        choices=("langfuse", "phoenix", "otel"),
        help="the tool that wrote the traces (JSON, JSONL; Phoenix: also Parquet); default: detected",
    )
    parser.add_argument("--task", help="task for episodes that name none")
    parser.add_argument("--progress", action="store_true", help="show progress even if standard error is no terminal")


def restore_adapters(args: argparse.Namespace, path: Path) -> int | None:
    """None: the file holds something else."""
    try:
        told = json.loads(path.read_text())
    except ValueError as e:
        raise SlipstreamError(f"{path}: not JSON: {e}") from e
    if not isinstance(told, dict) or "adapters" not in told:
        return None
    with connect(args) as client:
        client.restore_adapters(told)
    return len(told["adapters"])


def run(args: argparse.Namespace) -> int:
    path = Path(args.file)
    if not path.is_file():
        raise SlipstreamError(f"{path}: no such file")
    if path.suffix == ".json" and (adapters := restore_adapters(args, path)) is not None:
        print(json.dumps({"adapters": adapters}) if args.json else f"{adapters} adapters")
        return 0

    tool = args.source or tool_of(path)
    entries = read_log(path, args.task) if tool is None else read_traces(path, tool, args.task)

    async def send() -> int:
        async with AsyncClient(proxy_url(args), args.key) as client:
            return await upload(client, entries, wanted(args.progress))

    count = asyncio.run(send())
    print(json.dumps({"episodes": count}) if args.json else f"{count} episodes")
    return 0
