"""What is forgotten, gone from the spool too.

A frame of the same length that says nothing takes the place of each forgotten record. Only records that a verified
snapshot of the store holds are touched, so that a write that is cut off costs nothing.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import orjson
from crc32c import crc32c

from slipstream.contract import JUDGE_CACHE_PREFIX
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.log.records import Kind, mark_of
from slipstream_proxy.log.segments import Frame, list_segments, read_segment
from slipstream_proxy.store.values import Position
from slipstream_proxy.store.write.mutations import NAMING_MUTATIONS

BLANK_KIND = "blank"
_PIECE = 2**20
Marked = tuple[str, str]
"""(key, ``mark_of`` the episode)."""
Wanted = Collection[Marked]


def _is_wanted(key: object, episode: object, wanted: Wanted) -> bool:
    return (str(key), mark_of(str(episode))) in wanted


def _without(op: str, data: JsonObject, wanted: Wanted) -> JsonObject | None:
    """A mutation's data without these episodes; None: nothing is left to be said. The same object: it names none."""
    if op in NAMING_MUTATIONS and _is_wanted(data.get("key"), data.get("episode"), wanted):
        return None
    if op == "cache" and str(data.get("key")).startswith(JUDGE_CACHE_PREFIX):
        return None
    if op == "scores":
        if data["scores"].get("failed"):  # an error of the judge may quote any of its group's runs
            return {**data, "scores": {**data["scores"], "failed": ""}}
        scores = data["scores"].get("scores", [])
        left = [s for s in scores if not _is_wanted(data.get("key"), s["episode"], wanted)]
        # what a judge noted of a run may quote those that it read beside it: the group's, or a window's
        left = [
            {**s, "reason": ""}
            if s.get("reason") and (len(left) < len(scores) or (s.get("meta") or {}).get("mode") == "window")
            else s
            for s in left
        ]
        return data if left == scores else {**data, "scores": {**data["scores"], "scores": left}} if left else None
    if op == "delete":
        names = data.get("episodes", [[data.get("key"), data.get("episode")]])
        left = [[key, episode] for key, episode in names if not _is_wanted(key, episode, wanted)]
        return data if len(left) == len(names) else {"episodes": left, "marks": data.get("marks", [])}
    if op == "audit" and _is_wanted((detail := data.get("detail") or {}).get("key"), data.get("target"), wanted):
        return {**data, "target": "forgotten", "detail": {k: v for k, v in detail.items() if k != "text"}}
    return _without_members(data, wanted) if op == "ack" else data


def advantages_without(advantages: Mapping[str, float], marks: Collection[str]) -> dict[str, float]:
    """An ack's, without those of forgotten episodes. They are named ``<key>/<episode>`` or by the episode alone."""
    return {name: x for name, x in advantages.items() if mark_of(name.rpartition("/")[2]) not in marks}


def _without_members(data: JsonObject, wanted: Wanted) -> JsonObject:
    """An ack's data."""
    advantages = data["ack"].get("advantages") or {}
    kept = advantages_without(advantages, {mark for _, mark in wanted})
    members = (data.get("members") or {}).get("episodes") or []
    left = [m for m in members if not _is_wanted(m[0], m[1], wanted)]
    if len(kept) == len(advantages) and len(left) == len(members):
        return data
    gone = {"members": {**data["members"], "episodes": left}} if members else {}
    return {**data, "ack": {**data["ack"], "advantages": kept}, **gone}


def instead(frame: Frame, size: int, wanted: Wanted) -> tuple[bytes, int] | None:
    """A frame of ``size`` bytes with the id and the time of this one, without these episodes: how it begins, and how
    many spaces follow. None: this one may stay, or nothing fits.
    """
    head = frame.head
    if frame.kind is Kind.CALL:
        if not _is_wanted(head.get("key"), head.get("episode"), wanted):
            return None
        op, left = BLANK_KIND, None
    else:
        op, data = str(head.get("op")), head.get("data") or {}
        left = _without(op, data, wanted)
        if left is data:
            return None
    at = float(head.get("at") or 0.0) + float(head.get("seconds") or 0.0)
    when = {name: head[name] for name in ("tick", "boot") if name in head}
    text = orjson.dumps(
        {"id": head.get("id"), "op": BLANK_KIND if left is None else op, "at": at, "data": left or {}, **when}
    )
    spaces = size - 8 - 5 - len(text)
    if spaces < 0:
        return None
    start = struct.pack("<BI", Kind.MUTATION, len(text)) + text
    check = crc32c(start)
    for piece in _spaces(spaces):
        check = crc32c(piece, check)
    return struct.pack("<II", len(start) + spaces, check) + start, spaces


def _spaces(count: int) -> Iterator[bytes]:
    for at in range(0, count, _PIECE):
        yield b" " * min(_PIECE, count - at)


def blank(folder: Path, reached: dict[str, Position], wanted: Wanted) -> int:
    """Blank the records of these episodes that stand before ``reached``. → How many."""
    count = 0
    for writer, segments in list_segments(folder).items():
        end = reached.get(writer)
        for number, path in segments:
            if end is not None and number <= end.segment:
                count += _blank(path, end.offset if number == end.segment else None, wanted)
    return count


def _blank(path: Path, limit: int | None, wanted: Wanted) -> int:
    found: list[tuple[int, bytes, int]] = []
    try:
        segment = read_segment(path)
    except FileNotFoundError:
        return 0
    begin = 0
    for frame in segment:
        if limit is not None and frame.end > limit:
            break
        if new := instead(frame, frame.end - begin, wanted):
            found.append((begin, *new))
        begin = frame.end
    if found:
        fd = os.open(path, os.O_WRONLY)
        try:
            for at, start, spaces in found:
                # The usual frame goes in one write: a kill between two would leave one that ends its segment.
                with_start = min(spaces, _PIECE)
                os.pwrite(fd, start + b" " * with_start, at)
                at += len(start) + with_start
                for piece in _spaces(spaces - with_start):
                    os.pwrite(fd, piece, at)
                    at += len(piece)
            os.fdatasync(fd)
        finally:
            os.close(fd)
    return len(found)
