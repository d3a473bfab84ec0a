"""Many inputs over the whole way in, fast: what a guided run has found, mutated without watching coverage.

``make fuzz ARGS="requests CORPUS -max_total_time=300"`` fills a folder, ``make fuzz-bulk ARGS="--corpus CORPUS"``
mutates what is there. It needs no atheris, and runs the compiled modules where they were made (as workers do). Of
each ``--compare-every`` inputs one goes both ways. What it finds is written to ``--into`` with the inputs since the
records were read last, and sent once more to a fresh data plane: ``--again FILE`` does the same by hand.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import logging
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from slipstream_proxy.process import compiled

COMPILED = __name__ == "__main__" and compiled.use()  # before any of them is imported

from tests.fuzz.mutator import BLOCK, Mutator, read_corpus
from tests.fuzz.whole_way import WholeWay

SLOWEST = 20.0
"""Seconds of CPU after which an input counts as one that never ends."""
MOST_FINDINGS = 20
NEVER = sys.maxsize
SUMMED = ("inputs", "compared", "asked", "recorded")
"""Counts that a ``WholeWay`` keeps."""


@dataclasses.dataclass
class Counts:
    inputs: int = 0
    compared: int = 0
    """Inputs that went both ways."""
    asked: int = 0
    """Calls that reached the engine."""
    recorded: int = 0
    """Calls that were read back as rows."""
    findings: int = 0
    not_repeated: int = 0
    """Failures that a fresh data plane did not show with the same inputs: ``findings`` has them too."""


class Errors(logging.Handler):
    """What the proxy or asyncio logs as an error is one: exceptions of callbacks end there."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != "fake engine":
            self.said.append(logging.Formatter().format(record))


def too_slow(*_: object) -> None:
    raise TimeoutError(f"an input took over {SLOWEST:.0f} s of CPU")


@contextlib.contextmanager
def watched(errors: Errors) -> Iterator[None]:
    """What is logged as an error is kept in ``errors`` and said nowhere else, and no input takes for ever."""
    root = logging.getLogger()
    before, level = signal.signal(signal.SIGPROF, too_slow), root.level
    root.addHandler(errors)
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        root.removeHandler(errors)
        root.setLevel(level)


class Bulk:
    def __init__(self, into: Path, compare_every: int) -> None:
        self.into, self.compare_every = into, compare_every
        self.counts = Counts()
        self.errors = Errors()
        self.open()

    def open(self) -> None:
        self.way = WholeWay(self.compare_every)
        self.sent: list[list[bytes]] = []
        """Since the records were read last: what failed may be a call of one of them."""

    def close(self) -> None:
        self.counts = self.total()
        self.way.close()

    def total(self) -> Counts:
        """With those of the data plane that runs."""
        now = {name: getattr(self.counts, name) + getattr(self.way, name) for name in SUMMED}
        return dataclasses.replace(self.counts, **now)

    def block(self, inputs: list[list[bytes]], where: str) -> None:
        """Send them, then read what was recorded."""
        try:
            self.send(inputs)
        except Exception as e:
            self.found(e, where)

    def send(self, inputs: list[list[bytes]]) -> None:
        self.errors.said.clear()
        for parts in inputs:
            self.sent.append(parts)
            signal.setitimer(signal.ITIMER_PROF, SLOWEST)
            self.way.send(parts)
        signal.setitimer(signal.ITIMER_PROF, SLOWEST)
        self.way.read_records()
        assert not self.errors.said, self.errors.said[0]
        self.sent.clear()

    def found(self, e: Exception, where: str) -> None:
        """Write it down, and see whether it happens again."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        self.errors.said.clear()
        self.counts.findings += 1
        path = self.into / f"finding-{self.counts.findings}.json"
        said = "".join(traceback.format_exception(e))
        kept = {"where": where, "error": said, "inputs": [[p.decode("latin-1") for p in parts] for parts in self.sent]}
        path.write_text(json.dumps(kept, indent=1))
        self.close()
        repeated = again(path)
        self.open()
        self.counts.not_repeated += not repeated
        outcome = "it fails" if repeated else "it passes"
        print(f"{said}{where}: once more: tests/fuzz/bulk.py --again {path} ({outcome})", flush=True)


def again(path: Path) -> bool:
    """Send a finding's inputs, to a fresh data plane, by one way and by both. → Does one fail, or all of them together?"""
    inputs = [[p.encode("latin-1") for p in parts] for parts in json.loads(path.read_text())["inputs"]]
    failed = False
    singly = [[parts] for parts in reversed(inputs)]
    for some, compare_every in ((some, every) for some in (*singly, inputs) for every in (1, NEVER)):
        bulk = Bulk(path.parent, compare_every)
        try:
            with watched(bulk.errors):
                bulk.send(some)
        except Exception as e:
            print(f"{some}: {type(e).__name__}: {str(e)[:2000]}")
            failed = True
        finally:
            bulk.close()
        if failed:
            return True
    return False


def blocks(mutator: Mutator, first: int, inputs: int, seconds: float) -> Iterator[tuple[int, list[list[bytes]]]]:
    until = time.monotonic() + seconds
    for number in range(first // BLOCK, -(-(first + inputs) // BLOCK)):
        if time.monotonic() > until:
            return
        yield number, mutator.block(number)


def run(args: argparse.Namespace) -> Counts:
    corpus = read_corpus(args.corpus) if args.corpus else []
    print(f"seed {args.seed}, {len(corpus)} inputs to begin with, one in {args.compare_every} both ways,", end=" ")
    print("compiled modules" if COMPILED else "sources (no compiled modules)", flush=True)
    mutator, bulk = Mutator(corpus, args.seed), Bulk(args.into, args.compare_every)
    told = began = time.monotonic()
    with watched(bulk.errors):
        for number, inputs in blocks(mutator, args.first, args.inputs, args.minutes * 60):
            bulk.block(inputs, f"seed {args.seed}, inputs from {number * BLOCK} on")
            if time.monotonic() - told > 60:
                told = time.monotonic()
                tell(bulk.total(), told - began)
            if bulk.counts.findings >= MOST_FINDINGS:
                print(f"stopped after {MOST_FINDINGS} findings")
                break
    bulk.close()
    return bulk.counts


def tell(counts: Counts, seconds: float) -> None:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    said = f"{json.dumps(dataclasses.asdict(counts))} {counts.inputs / seconds:.0f}/s {memory} MiB"
    print(time.strftime("%H:%M:%S"), said, flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="a folder that the guided target `requests` has filled")
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first input: to run a part again")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop then, at the latest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compare-every", type=int, default=32)
    parser.add_argument("--into", type=Path, default=Path("fuzz-findings"), help="folder for findings")
    parser.add_argument("--again", type=Path, metavar="FILE", help="send a finding's inputs once more")
    args = parser.parse_args(argv)
    if args.again is not None:
        return int(again(args.again))
    args.into.mkdir(parents=True, exist_ok=True)
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    counts = run(args)
    print(json.dumps(dataclasses.asdict(counts)))
    return int(counts.findings > 0)


if __name__ == "__main__":
    sys.exit(main())
