"""Records out of the spool, as the store takes them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.records import CallHead, Kind, Mutation, Parsed
from slipstream_proxy.spool import Frame, list_segments, read_segment
from slipstream_proxy.store.protocol import CallRow, Position
from slipstream_proxy.usage import usage_of

log = logging.getLogger(__name__)
_HEAD_FIELDS = frozenset(f.name for f in fields(CallHead))
Item = CallRow | Mutation


@dataclass(slots=True)
class Read:
    """A record out of the spool, and where its writer stands after it."""

    writer: str
    position: Position
    at: float
    frame: Frame


def _time_of(frame: Frame) -> float:
    at = float(frame.head.get("at") or 0.0)
    return at + float(frame.head.get("seconds") or 0.0) if frame.kind is Kind.CALL else at


def read_writer(
    writer: str,
    segments: list[tuple[int, Path]],
    start: Position | None,
    on_torn: Callable[[str, int, Path, str, int], None],
) -> Iterator[Read]:
    """A writer's records from ``start`` on, over all its segments. A damaged tail is passed by as soon as there is a later segment."""
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
            yield Read(writer, Position(number, frame.end), _time_of(frame), frame)
        if segment.torn:
            last = i == len(segments) - 1
            if last:
                return  # being written just now, or its writer died: the next one of its name says which
            on_torn(writer, number, path, segment.torn, segment.offset)


def parse(read: Read) -> tuple[Item, bool]:
    """The record as the store takes it, and whether all of it could be read."""
    frame = read.frame
    if frame.kind is Kind.MUTATION:
        h = frame.head
        return Mutation(str(h["id"]), str(h["op"]), float(h["at"]), dict(h["data"])), True
    head = CallHead(**{k: v for k, v in frame.head.items() if k in _HEAD_FIELDS})
    try:
        parsed = BY_NAME[head.dialect].parse(frame.request, frame.reply, head)
        if not parsed.prompt_ids and frame.reply:
            head.extra["usage"] = usage_of(frame.reply)
        return CallRow(head, parsed), True
    except Exception as e:
        log.warning("call %s cannot be parsed (%s): kept without its text: %s", head.id, head.dialect, type(e).__name__)
        return CallRow(head, textless(head, f"unreadable: {type(e).__name__}")), False


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
