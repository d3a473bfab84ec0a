from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from slipstream.cli.common import add_client, connect
from slipstream.cli.look.episodes import add_filters, filters
from slipstream.errors import SlipstreamError
from slipstream.shared.files import private_file
from slipstream.shared.progress import Progress, wanted


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    add_filters(parser)
    parser.add_argument("--format", choices=("jsonl", "parquet", "sft", "dpo"), default="jsonl")
    parser.add_argument(
        "--form",
        choices=("auto", "deltas"),
        default="auto",
        help="how jsonl and parquet write calls; auto: whole in runs of up to 50 calls, as deltas in longer runs",
    )
    parser.add_argument("--out", metavar="FILE", help="default: standard output")
    parser.add_argument("--progress", action="store_true", help="show progress even if standard error is no terminal")


def watched(parts: Iterator[bytes], progress: Progress, format: str) -> Iterator[bytes]:
    """The same parts, with a line on how much has come."""
    rows = size = 0
    for part in parts:
        rows, size = rows + part.count(b"\n"), size + len(part)
        figures = {} if format == "parquet" else {"rows": rows}
        progress.count("export", **figures, megabytes=f"{size / 1e6:.1f}")
        yield part
    progress.end()


def run(args: argparse.Namespace) -> int:
    part = Path(f"{args.out}.part") if args.out else None
    try:
        with connect(args) as client, contextlib.ExitStack() as stack:
            out: BinaryIO = stack.enter_context(private_file(part)) if part else sys.stdout.buffer
            form = {} if args.form == "auto" else {"form": args.form}
            parts = client.export(args.format, **filters(args), **form)
            progress = wanted(args.progress) if part or not sys.stdout.isatty() else None
            out.writelines(watched(parts, progress, args.format) if progress else parts)
            out.flush()
        if part:  # a whole file or none
            size = part.stat().st_size
            part.rename(args.out)
            found = {"file": args.out, "format": args.format, "bytes": size}
            print(json.dumps(found) if args.json else f"{args.out}: {size / 1e6:.1f} MB of {args.format}")
    except BrokenPipeError:
        raise
    except OSError as e:
        raise SlipstreamError(f"{args.out or 'standard output'}: {e.strerror}") from e
    finally:
        if part:
            part.unlink(missing_ok=True)
    return 0
