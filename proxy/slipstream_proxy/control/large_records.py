"""Records that would take too much memory to be parsed: their raw bytes stay in files, and the store gets their heads.

``<data_dir>/large/<call>/`` holds ``head.json``, ``request`` and ``reply`` as the engine's side saw them. They are
there, safe, before the store has the call, and go when its episode is forgotten or its day is dropped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

import orjson

from slipstream.files import sync
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.parse_weight import ASCII, parse_weight
from slipstream_proxy.records import Kind
from slipstream_proxy.segments import Frame
from slipstream_proxy.store.values import Name

REASON = "too large"
FOLDER, HEAD = "large", "head.json"
MOST = 640 * 2**20
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
    texts = ASCII * (len(reply) - len(parts))
    return texts + parse_weight(parts) + parse_weight(request) > MOST


def where_kept(frame: Frame) -> str:
    """What the store says in place of the call's text."""
    place = frame.place
    size = len(frame.request) + len(frame.reply) if place is None else place.request + place.reply
    return f"too large to be parsed ({size} bytes): its raw record lies in the data_dir's {FOLDER}/{frame.head['id']}"


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
        _write(part / HEAD, [orjson.dumps(frame.head)])
        sync(part)
        part.replace(path)
        sync(self.folder)
        return path

    def forget(self, names: Collection[Name]) -> int:
        """The files of these episodes (key, id) go. → Of how many calls."""
        return self._drop(lambda head: (str(head.get("key")), str(head.get("episode"))) in names)

    def prune(self, before: float) -> int:
        """The files of calls before this moment go. → Of how many calls."""
        return self._drop(lambda head: float(head["at"]) < before)

    def _drop(self, goes: Callable[[JsonObject], bool]) -> int:
        count = 0
        for path in self.folder.glob(f"[!.]*/{HEAD}"):
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
