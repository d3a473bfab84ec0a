"""Records out of the spool, as the store takes them."""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import takewhile
from pathlib import Path

from slipstream_proxy.control.large_records import REASON, too_large, where_kept
from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.dialects.base import loads
from slipstream_proxy.records import CallHead, Kind, Mutation, Parsed
from slipstream_proxy.segments import Frame, list_segments, read_segment
from slipstream_proxy.store.values import Position, RecordedCall
from slipstream_proxy.usage import usage_of

log = logging.getLogger(__name__)
_HEAD_FIELDS = frozenset(f.name for f in fields(CallHead))
Item = RecordedCall | Mutation
Torn = Callable[[str, int, Path, str, int], None]
"""Told of a segment's damage: writer, number, path, why, from which byte on."""


@dataclass(slots=True)
class Read:
    """A record out of the spool, and where its writer stands after it."""

    writer: str
    position: Position
    at: float
    """When it happened, by the wall clock."""
    order: float
    """The same, but never less for what one machine wrote later: the wall clock may have been set meanwhile."""
    frame: Frame
    large: bool | None = None
    """Whether it takes too much memory to be parsed; None: nobody has looked."""

    def too_large(self) -> bool:
        """Looks once: that reads all of a record of some size."""
        if self.large is None:
            self.large = too_large(self.frame)
        return self.large


class Steady:
    """Times of records by their machine's monotonic clock, from the wall clock at each start's first record."""

    def __init__(self) -> None:
        self._starts: dict[str, float] = {}

    def of(self, frame: Frame) -> float:
        at, tick = _time_of(frame), frame.head.get("tick")
        if not tick:
            return at
        return self._starts.setdefault(str(frame.head.get("boot")), at - float(tick)) + float(tick)


def _time_of(frame: Frame) -> float:
    at = float(frame.head.get("at") or 0.0)
    return at + float(frame.head.get("seconds") or 0.0) if frame.kind is Kind.CALL else at


def read_writer(
    writer: str, segments: list[tuple[int, Path]], start: Position | None, on_torn: Torn, steady: Steady | None = None
) -> Iterator[Read]:
    """A writer's records from ``start`` on, over all its segments.

    A damaged tail is passed by as soon as there is a later segment.
    """
    steady = steady or Steady()
    for i, (number, path) in enumerate(segments):
        if start and number < start.segment:
            continue
        offset = start.offset if start and number == start.segment else 0
        try:
            if path.stat().st_size <= offset:
                continue
            segment = read_segment(path, offset)
        except FileNotFoundError:
            continue
        for frame in segment:
            yield Read(writer, Position(number, frame.end), _time_of(frame), steady.of(frame), frame)
        if segment.torn:
            last = i == len(segments) - 1
            if last:
                return  # being written just now, or its writer died: the next one of its name says which
            on_torn(writer, number, path, segment.torn, segment.offset)


def stand_of(folder: Path) -> frozenset[tuple[str, int, int]]:
    """Name, size and time of each of the spool's files: while it is the same, nothing has been written. Cheap."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                stat = entry.stat()
                found.append((entry.name, stat.st_size, stat.st_mtime_ns))
    return frozenset(found)


def ends(found: dict[str, list[tuple[int, Path]]]) -> dict[str, Position]:
    """Where each writer's files end now."""
    there: dict[str, Position] = {}
    for writer, segments in found.items():
        for number, path in segments:
            with contextlib.suppress(OSError):
                there[writer] = Position(number, path.stat().st_size)
    return there


def gather(folder: Path, positions: dict[str, Position], most: int, most_bytes: int, on_torn: Torn) -> list[Read]:
    """The next records of all writers, in the order in which they happened, none before one that its client had seen.

    A client that was answered by one writer and then asks another has its first record on the disk before the second
    one. So all ends are looked at before anything is read; and when the batch is read, they are looked at again, for
    what came meanwhile and is older than the batch's youngest.
    """

    def stream(writer: str, start: Position | None, end: Position) -> Iterator[Read]:
        return takewhile(lambda r: r.position <= end, read_writer(writer, found[writer], start, on_torn, steady))

    found, steady = list_segments(folder), Steady()
    parts: dict[str, list[Read]] = defaultdict(list)
    count = size = 0
    youngest = float("-inf")
    streams = [stream(writer, positions.get(writer), end) for writer, end in ends(found).items()]
    for read in heapq.merge(*streams, key=lambda r: r.order):
        parts[read.writer].append(read)
        count, size = count + 1, size + len(read.frame.request) + len(read.frame.reply)
        youngest = max(youngest, read.order)
        if count >= most or size > most_bytes:
            break
    if not count:
        return []
    found = list_segments(folder)
    for writer, end in ends(found).items():
        reached = parts[writer][-1].position if parts[writer] else positions.get(writer)
        parts[writer] += takewhile(lambda r: r.order <= youngest, stream(writer, reached, end))
    return list(heapq.merge(*parts.values(), key=lambda r: r.order))


def parse(read: Read) -> tuple[Item, bool]:
    """The record as the store takes it, and whether all of it could be read."""
    frame = read.frame
    if frame.kind is Kind.MUTATION:
        h = frame.head
        return Mutation(str(h["id"]), str(h["op"]), float(h["at"]), dict(h["data"])), True
    head = CallHead(**{k: v for k, v in frame.head.items() if k in _HEAD_FIELDS})
    if read.too_large():
        return RecordedCall(head, Parsed([], [], {}, [], [], REASON, where_kept(frame))), False
    try:
        parsed = BY_NAME[head.dialect].parse(frame.request, frame.reply, head)
        if not parsed.prompt_ids and frame.reply:
            head.extra["usage"] = usage_of(frame.reply)
        return RecordedCall(head, parsed, *_response_ids(frame, head)), True
    except Exception as e:
        log.warning("call %s cannot be parsed (%s): kept without its text: %s", head.id, head.dialect, type(e).__name__)
        return RecordedCall(head, textless(head, f"unreadable: {type(e).__name__}")), False


def _response_ids(frame: Frame, head: CallHead) -> tuple[str | None, str | None]:
    """The responses API's names for this reply and for the one that the request goes on with."""
    if head.dialect != "responses":
        return None, None
    body = loads(frame.request)
    before = body.get("previous_response_id") if isinstance(body, dict) else None
    issued = BY_NAME[head.dialect].said(frame.reply, stream=head.stream).tool_ids
    mine = next((i for i in issued if i.startswith("resp")), None)
    return mine, before if isinstance(before, str) else None


def textless(head: CallHead, why: str) -> Parsed:
    head.note = head.note or why
    return Parsed([], [], {}, [], [], "unreadable", why)


def backlog(folder: Path, positions: dict[str, Position]) -> tuple[int, float | None]:
    """Bytes of the spool behind ``positions``, and when the oldest of their records happened; None: there is none."""
    pending, oldest = 0, None
    for writer, segments in list_segments(folder).items():
        reached = positions.get(writer)
        for number, path in segments:
            if reached is None or number >= reached.segment:
                start = reached.offset if reached and number == reached.segment else 0
                with contextlib.suppress(OSError):
                    pending += max(0, path.stat().st_size - start)
        first = next(read_writer(writer, segments, reached, lambda *_: None), None)
        if first is not None and (oldest is None or first.at < oldest):
            oldest = first.at
    return pending, oldest
