"""``slipstream backup FILE``: everything in one tar file, while everything runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from slipstream.cli.common import add_client, connect
from slipstream.errors import SlipstreamError
from slipstream.shared.files import private_file


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument(
        "file", metavar="FILE", help="the tar file to write; to restore, unpack it into an empty data_dir"
    )


def run(args: argparse.Namespace) -> int:
    part = Path(f"{args.file}.part")
    size = 0
    try:
        with connect(args) as client, private_file(part) as out:
            for data in client.backup():
                size += out.write(data)
            out.flush()
            os.fsync(out.fileno())
        part.rename(args.file)  # a whole file or none
    except OSError as e:
        raise SlipstreamError(f"{args.file}: {e.strerror}") from e
    finally:
        part.unlink(missing_ok=True)
    if args.json:
        print(json.dumps({"file": args.file, "bytes": size}))
    else:
        print(f"{args.file}: {size / 2**20:.1f} MiB", file=sys.stderr)
    return 0
