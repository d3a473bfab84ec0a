"""Records out of the spool, as the store takes them.

Of those that would take too much memory to be parsed the raw bytes stay in files, and the store gets their heads.
``<data_dir>/large/<call>/`` holds ``head.json``, ``request`` and ``reply`` as the engine's side saw them. They are
there, safe, before the store has the call, and go when its episode is forgotten or its day is dropped.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import takewhile
from pathlib import Path

import orjson

from slipstream.shared.files import sync
from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.dialects.base import loads
from slipstream_proxy.dialects.untrainable import UntrainableReason
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.log.records import CallHead, Kind, Mutation, Parsed, mark_of
from slipstream_proxy.log.segments import Frame, list_segments, read_segment
from slipstream_proxy.parse_weight import ASCII_WEIGHT, parse_weight
from slipstream_proxy.store.values import Name, Position, RecordedCall
from slipstream_proxy.usage import usage_of

TOO_LARGE_REASON = "too large"
LARGE_FOLDER, HEAD_FILE = "large", "head.json"
MAX_PARSE_BYTES = 640 * 2**20
"""Bytes that parsing one record may take, as estimated."""
_USUAL = 2**20
"""Bytes of a record of which none takes so much."""
_PIECE = 2**20


def too_large(frame: Frame) -> bool:
    """Whether parsing this record would take more memory than the control plane has for it."""
    if frame.kind is not Kind.CALL:
        return False
    if frame.place is not None:
        return True
    request, reply = frame.request, frame.reply
    if len(request) + len(reply) <= _USUAL:
        return False
    # a stream is parsed event by event
    parts = max(reply.split(b"\n\n"), key=len) if frame.head.get("stream") else reply
    texts = ASCII_WEIGHT * (len(reply) - len(parts))
    return texts + parse_weight(parts) + parse_weight(request) > MAX_PARSE_BYTES


def where_kept(frame: Frame) -> str:
    """What the store says in place of the call's text."""
    place = frame.place
    size = len(frame.request) + len(frame.reply) if place is None else place.request + place.reply
    where = f"the data_dir's {LARGE_FOLDER}/{frame.head['id']}"
    return f"too large to be parsed ({size} bytes): its raw record lies in {where}"


class LargeRecords:
    """The files in ``folder``, one writer. All methods block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, frame: Frame) -> Path:
        """Write a call's files, unless they are there. Raises ``OSError``: then the record must stay in the spool."""
        path = self.folder / str(frame.head["id"])
        if path.is_dir():
            return path
        part = path.with_name(f".{path.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700, parents=True)
        place = frame.place
        if place is None:
            _write(part / "request", [frame.request])
            _write(part / "reply", [frame.reply])
        else:
            _write(part / "request", _pieces(place.path, place.offset, place.request))
            _write(part / "reply", _pieces(place.path, place.offset + place.request, place.reply))
        _write(part / HEAD_FILE, [orjson.dumps(frame.head)])
        sync(part)
        part.replace(path)
        sync(self.folder)
        return path

    def forget(self, names: Collection[Name]) -> int:
        """The files of these episodes (key, mark) go. → Of how many calls."""
        return self._drop(lambda head: (str(head.get("key")), mark_of(str(head.get("episode")))) in names)

    def prune(self, before: float) -> int:
        """The files of calls before this moment go. → Of how many calls."""
        return self._drop(lambda head: float(head["at"]) < before)

    def _drop(self, goes: Callable[[JsonObject], bool]) -> int:
        count = 0
        for path in self.folder.glob(f"[!.]*/{HEAD_FILE}"):
            if goes(orjson.loads(path.read_bytes())):
                shutil.rmtree(path.parent)
                count += 1
        return count


def _pieces(path: Path, at: int, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(at)
        while size:
            piece = file.read(min(size, _PIECE))
            if not piece:
                raise OSError(f"{path.name} has been cut off")
            size -= len(piece)
            yield piece


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())


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


def parse(read: Read, vocabulary: int | None = None) -> tuple[Item, bool]:
    """The record as the store takes it, and whether all of it could be read. ``vocabulary``: the model's tokens."""
    frame = read.frame
    if frame.kind is Kind.MUTATION:
        h = frame.head
        when = float(h.get("tick") or 0.0), str(h.get("boot") or "")
        return Mutation(str(h["id"]), str(h["op"]), float(h["at"]), dict(h["data"]), *when), True
    fields = frame.head
    head = CallHead(
        **(fields if fields.keys() <= _HEAD_FIELDS else {k: fields[k] for k in fields.keys() & _HEAD_FIELDS})
    )
    if read.too_large():
        return RecordedCall(head, Parsed([], [], {}, [], [], TOO_LARGE_REASON, where_kept(frame))), False
    try:
        parsed = BY_NAME[head.dialect].parse(frame.request, frame.reply, head)
        if parsed.untrainable is None and vocabulary is not None and not _within(parsed, vocabulary):
            parsed.untrainable = UntrainableReason.TOKEN_ID_BEYOND.of()
        if not parsed.prompt_ids and frame.reply:
            head.extra["usage"] = usage_of(frame.reply)
        return RecordedCall(head, parsed, *_response_ids(frame, head)), True
    except Exception as e:
        log.warning("call %s cannot be parsed (%s): kept without its text: %s", head.id, head.dialect, type(e).__name__)
        return RecordedCall(head, textless(head, f"unreadable: {type(e).__name__}")), False


def _within(parsed: Parsed, vocabulary: int) -> bool:
    ids = (parsed.prompt_ids, *(choice.completion_ids for choice in parsed.choices))
    return all(max(some, default=0) < vocabulary for some in ids)


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
