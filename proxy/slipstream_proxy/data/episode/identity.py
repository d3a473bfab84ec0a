"""Who a call belongs to: what its tags say, in the order headers, path prefix, key suffix, metadata, trace."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from slipstream.contract import TAG
from slipstream_proxy.data.wire.errors import RequestRefused
from slipstream_proxy.json_types import JsonObject

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX = re.compile(r"^(?:/t/([^/]*))?/e/([^/]*)(?=/)")
_TASK_PREFIX = re.compile(r"^/t/([^/]*)(?=/)")
_TRACE = re.compile(rb"^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_OURS = b"x-slipstream-"
_SPLITS = ("train", "eval", "off")
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""In a tag's value: what ends a line somewhere, steers a terminal or is no character."""
MAX_TAGS = 32


class Tags:
    """What a request says about itself; None: nothing. ``origin`` is what named the episode."""

    __slots__ = (
        "done",
        "episode",
        "origin",
        "split",
        "tags",
        "task",
    )  # no dataclass: the ``__init__`` of one is not compiled

    def __init__(self, episode: str | None = None, task: str | None = None) -> None:
        self.episode, self.task = episode, task
        self.split: str | None = None
        self.done = False
        self.tags: dict[str, str] = {}
        self.origin = "new"


@dataclass(slots=True, frozen=True)
class Prefix:
    """A path without its tags."""

    path: str
    episode: str | None = None
    task: str | None = None


def split_path(path: str) -> Prefix:
    """Take ``/e/<episode>`` or ``/t/<task>/e/<episode>`` off a path."""
    if not path.startswith(("/e/", "/t/")):
        return Prefix(path)
    m = _PREFIX.match(path)
    if m:
        return Prefix(path[m.end() :], unquote(m[2]), m[1] and unquote(m[1]))
    m = _TASK_PREFIX.match(path)
    return Prefix(path[m.end() :], None, unquote(m[1])) if m else Prefix(path)


def checked(value: str, where: str) -> str:
    """A tag's value. Raises ``RequestRefused``, naming the header."""
    if not TAG.match(value) or value.endswith("\n"):
        raise RequestRefused(400, f"{where}: must be 1 to 128 of A-Z a-z 0-9 . _ -", param=where)
    return value


def read_tags(
    headers: Mapping[bytes, bytes],
    prefix: Prefix,
    suffix: str | None,
    body: JsonObject | None,
    *,
    traceparent: bool = False,
) -> Tags:
    """``headers`` are the request's tags (and its traceparent). Takes our keys out of ``body["metadata"]``. Raises
    ``RequestRefused`` (400) at a bad tag.
    """
    found = Tags()
    for name, value in headers.items():
        if name.startswith(_OURS):
            _header(found, name, value)
    if prefix.episode is not None:
        _name(found, checked(prefix.episode, "the path's episode"), "path")
    if prefix.task is not None:
        found.task = found.task or checked(prefix.task, "the path's task")
    if suffix is not None:
        task, colon, episode = suffix.rpartition(":")
        _name(found, checked(episode, "the API key's episode"), "key")
        if colon:
            found.task = found.task or checked(task, "the API key's task")
    if body is not None and isinstance(body.get("metadata"), dict):
        _metadata(found, body, done=b"x-slipstream-done" not in headers)
    if traceparent and found.episode is None and (m := _TRACE.match(headers.get(b"traceparent", b""))):
        _name(found, m[1].decode(), "trace")
    return found


def _name(found: Tags, episode: str, origin: str) -> None:
    if found.episode is None:
        found.episode, found.origin = episode, origin


def _header(found: Tags, name: bytes, raw: bytes) -> None:
    shown, value = name.decode("latin-1"), raw.decode("latin-1")
    if name == b"x-slipstream-episode":
        _name(found, checked(value, shown), "header")
    elif name == b"x-slipstream-task":
        found.task = checked(value, shown)
    elif name == b"x-slipstream-split":
        found.split = _split(value, shown)
    elif name == b"x-slipstream-done":
        found.done = _done(value, shown)
    elif name.startswith(b"x-slipstream-tag-"):
        key = checked(shown.removeprefix("x-slipstream-tag-"), shown[:64])
        try:
            value = raw.decode()
        except UnicodeDecodeError:  # of clients that send Latin-1
            pass
        _tag(found, key, value, shown)


def _split(value: str, where: str) -> str:
    if value not in _SPLITS:
        raise RequestRefused(400, f"{where}: must be one of {', '.join(_SPLITS)}", param=where)
    return value


def _done(value: str, where: str) -> bool:
    low = value.lower()
    if low not in ("true", "false", "1", "0"):
        raise RequestRefused(400, f"{where}: must be true or false", param=where)
    return low in ("true", "1")


def _tag(found: Tags, key: str, value: str, where: str) -> None:
    if len(value) > 256 or _UNFIT.search(value):
        raise RequestRefused(400, f"{where}: a tag has at most 256 printable characters", param=where)
    if len(found.tags) >= MAX_TAGS:
        raise RequestRefused(400, f"{where}: more than {MAX_TAGS} tags", param=where)
    found.tags.setdefault(key, value)


def _metadata(found: Tags, body: JsonObject, *, done: bool) -> None:
    """``done``: whether this says if it is done; a header was first."""
    metadata: JsonObject = body["metadata"]
    ours = [k for k in metadata if k.startswith("slipstream_")]
    if not ours:
        return
    for name in ours:
        value, where = str(metadata[name]), f"metadata.{name}"
        if name == "slipstream_episode":
            _name(found, checked(value, where), "metadata")
        elif name == "slipstream_task":
            found.task = found.task or checked(value, where)
        elif name == "slipstream_split":
            found.split = found.split or _split(value, where)
        elif name == "slipstream_done":
            found.done = _done(value, where) if done else found.done
        elif name.startswith("slipstream_tag_"):
            _tag(found, checked(name.removeprefix("slipstream_tag_"), where), value, where)
    left = {k: v for k, v in metadata.items() if k not in ours}
    if left:
        body["metadata"] = left
    else:
        del body["metadata"]
