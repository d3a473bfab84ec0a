from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import BinaryIO

from slipstream.cli.common import add_client, connect
from slipstream.cli.episodes import add_filters, filters
from slipstream.errors import SlipstreamError


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    add_filters(parser)
    parser.add_argument("--format", choices=("jsonl", "parquet", "sft", "dpo"), default="jsonl")
    parser.add_argument("--out", metavar="FILE", help="default: standard output")


def run(args: argparse.Namespace) -> int:
    part = Path(f"{args.out}.part") if args.out else None
    try:
        with connect(args) as client, contextlib.ExitStack() as stack:
            out: BinaryIO = stack.enter_context(part.open("wb")) if part else sys.stdout.buffer
            out.writelines(client.export(args.format, **filters(args)))
            out.flush()
        if part:  # a whole file or none
            part.rename(args.out)
    except BrokenPipeError:
        raise
    except OSError as e:
        raise SlipstreamError(f"{args.out or 'standard output'}: {e.strerror}") from e
    finally:
        if part:
            part.unlink(missing_ok=True)
    return 0
