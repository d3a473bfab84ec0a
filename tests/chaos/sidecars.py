"""What works beside the proxies: a real judge with a function in place of a model, and who leases batches as a trainer does.

``python tests/chaos/sidecars.py lease URL FILE`` leases batches for ever and writes the groups of each one that it acknowledged into FILE.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from slipstream.client import Client
from slipstream.contract import BatchAck, BatchLeaseIn, Group
from slipstream.errors import SlipstreamError


def score(group: Group) -> dict[str, float]:
    """``judge.function`` of the judge that is killed."""
    return {e.episode.id: float(i % 3) for i, e in enumerate(group.episodes)}


def lease(url: str, file: Path) -> None:
    with Client(url) as client:
        while True:
            try:
                work = client.lease_batch(
                    BatchLeaseIn(worker="chaos", min_groups=1, max_groups=2, max_wait=0.0, seconds=5.0)
                )
                if work is None:
                    time.sleep(0.2)
                    continue
                groups = sorted(set(work.table["group"].to_pylist()))
                time.sleep(0.1)
                client.ack_batch(work.id, BatchAck(lease=work.lease, outcome="trained"))
            except SlipstreamError:
                time.sleep(0.2)
                continue
            with file.open("a") as out:
                out.write("".join(f"{g}\n" for g in groups))


def trained_twice(file: Path) -> Iterator[str]:
    """Groups that were acknowledged in two batches."""
    seen: set[str] = set()
    for line in file.read_text().splitlines() if file.exists() else ():
        if line in seen:
            yield line
        seen.add(line)


if __name__ == "__main__":
    lease(sys.argv[2], Path(sys.argv[3]))
