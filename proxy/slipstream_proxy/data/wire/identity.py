"""Who a call belongs to: what its tags say, in the order headers, path prefix, key suffix, metadata, trace, and then
what its client sends anyway (``SessionNames``).
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from slipstream.contract import LONGEST_TAG, PLAIN_ID_PATTERN, name_of, tag_text
from slipstream_proxy.json_types import Json, JsonObject

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slipstream_proxy.redaction import Redaction

log = logging.getLogger(__name__)

_PREFIX = re.compile(r"^(?:/t/([^/]*))?/e/([^/]*)(?=/)")
_TASK_PREFIX = re.compile(r"^/t/([^/]*)(?=/)")
_TRACE = re.compile(rb"^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_OURS = b"x-slipstream-"
_SPLITS = ("train", "eval", "off")
_USUAL_ID_CHARS: Final = 128
"""Of a text that is an id if it has letters, digits and hyphens alone."""
MAX_TAGS = 32
MOST_RAW_TAG = 2 * LONGEST_TAG
"""Characters of a tag that is kept as it came until its call is redacted. One that is cut before may hold half a
secret.
"""

EPISODE_TEXT, TASK_TEXT, SPLIT_TEXT = "episode-text", "task-text", "split-text"
"""Tags that keep what a client wrote where the id had to be another."""


class Tags:
    """What a request says about itself; None: nothing. ``origin`` is what named the episode."""

    __slots__ = (
        "captured",
        "done",
        "episode",
        "kind",
        "origin",
        "redaction",
        "session",
        "split",
        "tags",
        "task",
    )  # no dataclass: the ``__init__`` of one is not compiled

    def __init__(self, episode: str | None = None, task: str | None = None, redaction: Redaction | None = None) -> None:
        self.episode, self.task = episode, task
        self.redaction = redaction
        """What may be named of what a request says; None: all of it. Values of tags are redacted with their call."""
        self.split: str | None = None
        self.done = False
        self.captured: bool | None = None
        """False: this one call is relayed and not recorded."""
        self.kind = ""
        """What the call is in its run; nothing: the store finds out."""
        self.tags: dict[str, str] = {}
        self.origin = "new"
        self.session: SessionName | None = None
        """What named the episode, where nothing of ours did."""

    @property
    def doubtful(self) -> bool:
        """The name may stand for many runs: what is said tells them apart."""
        return self.session is not None and bool(self.session.doubt)


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
        return Prefix(path[m.end() :], _unquoted(m[2]), m[1] and _unquoted(m[1]))
    m = _TASK_PREFIX.match(path)
    return Prefix(path[m.end() :], None, _unquoted(m[1])) if m else Prefix(path)


def _unquoted(part: str) -> str:
    return text_of(unquote_to_bytes(part))


def text_of(raw: bytes) -> str:
    """Text as clients send it: UTF-8, else Latin-1, which takes any bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def read_tags(
    headers: Mapping[bytes, bytes],
    prefix: Prefix,
    suffix: str | None,
    body: JsonObject | None,
    *,
    traceparent: bool = False,
    redaction: Redaction | None = None,
) -> Tags:
    """``headers``: the request's tags, strongest first. Takes our keys out of ``body["metadata"]``. Never fails."""
    found = Tags(redaction=redaction)
    for name, value in headers.items():
        if name.startswith(_OURS):
            _say(found, text_of(name.removeprefix(_OURS)), text_of(value), "header")
    _episode(found, prefix.episode, "path")
    _task(found, prefix.task)
    if suffix is not None:
        task, _, episode = suffix.rpartition(":")
        _episode(found, episode, "key")
        _task(found, task)
    if body is not None and isinstance(body.get("metadata"), dict):
        _metadata(found, body, done=b"x-slipstream-done" not in headers)
    if traceparent and found.episode is None and (m := _TRACE.match(headers.get(b"traceparent", b""))):
        _episode(found, m[1].decode(), "trace")
    return found


_UNIQUE = re.compile(
    r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|(?<![0-9a-z])(?=[a-z]*[0-9])[0-9a-z]{20,}(?![0-9a-z])"
)
"""A UUID, or 20 letters and digits: no two runs have the same by chance, and nobody writes one by hand."""
_SHARED: Final = frozenset((b"x-session-affinity", "prompt_cache_key"))
"""Some clients send one run's id here, and others one text for all their runs. Only an id counts."""
_OF_MANY: Final = _SHARED | {b"user", "user", "safety_identifier", "metadata.user_id"}
"""What stands here may be an id of content, of a tenant or of a user, however it looks."""
_RANDOM = re.compile(
    r"(?i)[0-9a-f]{8}-[0-9a-f]{4}-[1467][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}|"
    r"(?<![0-9a-z])[0-9a-f]{12}[147][0-9a-f]{3}[89ab][0-9a-f]{15}(?![0-9a-z])"
)
"""A UUID that is made of no name, with hyphens or without."""
_HASH = re.compile(
    r"(?i)(?<![0-9a-z])(?:[0-9a-f]{16,}|(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{7,}|[0-9]{17,20})(?![0-9a-z])|"
    r"(?<![\w+/-])(?:[\w+/-]{22}|[\w+/-]{27}|[\w+/-]{43}|[\w+/-]{86})(?:={1,2}|(?![\w+/=-]))"
)
"""Digits as of a hash: hexadecimal, one number, or Base64 as long as that of MD5, SHA-1, SHA-256 or SHA-512."""


class SessionName:
    """What named a session. ``doubt``: the field, where the name may stand for many runs: all but a random id may.
    ``weak``: it is a field for such names.
    """

    __slots__ = ("doubt", "text", "weak")

    def __init__(self, field: str | bytes, text: str) -> None:
        self.text = text
        self.weak = field in _OF_MANY
        random = _RANDOM.search(text) is not None or (_UNIQUE.search(text) is not None and _HASH.search(text) is None)
        self.doubt = "" if random and not self.weak else field.decode() if isinstance(field, bytes) else field


class SessionNames:
    """The headers and body fields in which agents name their session without being asked to."""

    __slots__ = ("fields", "headers")

    def __init__(self, headers: Sequence[str] = (), fields: Sequence[str] = ()) -> None:
        """The first that is there counts. A dot in a field leads into an object, or into a text that holds one."""
        self.headers = [name.lower().encode() for name in headers]
        self.fields = [(name, name.split(".")) for name in fields]

    def in_headers(self, headers: Mapping[bytes, bytes]) -> SessionName | None:
        for name in self.headers:
            raw = headers.get(name)
            if raw and (name not in _SHARED or _UNIQUE.search(text_of(raw)) is not None):
                return SessionName(name, text_of(raw))
        return None

    def in_body(self, body: JsonObject) -> SessionName | None:
        for name, path in self.fields:
            value = body.get(path[0])
            if value is None:
                continue
            for part in path[1:]:
                value = _member(value, part)
            if isinstance(value, dict):
                value = value.get("id")
            if isinstance(value, str) and value and (name not in _SHARED or _UNIQUE.search(value) is not None):
                return SessionName(name, value)
        return None


def _member(value: Json, name: str) -> Json:
    """A member of an object, of a text with JSON, or of a text as ``user_1_account__session_2`` (``session_id``)."""
    if isinstance(value, str):
        if not value.startswith("{"):
            return value.rpartition(f"_{name.removesuffix('_id')}_")[2] if name.removesuffix("_id") in value else None
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value.get(name) if isinstance(value, dict) else None


def name_session(found: Tags, session: SessionName | None) -> None:
    """Nothing else named the episode: this session is one, unless it turns out to be many."""
    if session is not None:
        _episode(found, session.text, "session")
        found.session = session


def _episode(found: Tags, text: str | None, origin: str) -> None:
    if text and found.episode is None:
        name = _named(found, text, EPISODE_TEXT)
        found.episode = name if found.redaction is None else found.redaction.id("episode", text, name)
        found.origin = origin


def _task(found: Tags, text: str | None) -> None:
    if text and found.task is None:
        name = _named(found, text, TASK_TEXT)
        found.task = name if found.redaction is None else found.redaction.name("task", text)


def _named(found: Tags, text: str, tag: str) -> str:
    """The id of a text. A text that is no id is kept as a tag."""
    usual = len(text) <= _USUAL_ID_CHARS and text.isascii() and text.replace("-", "").isalnum()
    if usual or PLAIN_ID_PATTERN.match(text):  # which costs five times as much
        return text
    _tag(found, tag, text)
    return name_of(text)


def _say(found: Tags, name: str, text: str, origin: str) -> None:
    """``name``: what stands in a header behind ``x-slipstream-``, in the metadata behind ``slipstream_``."""
    if name == "episode":
        _episode(found, text, origin)
    elif name == "task":
        _task(found, text)
    elif name == "split":
        _split(found, text)
    elif name == "done":
        found.done = _is_true(text)
    elif name == "capture":
        _capture(found, text)
    elif name == "kind":
        _kind(found, text)
    elif name.startswith("tag-" if origin == "header" else "tag_"):
        _tag(found, name[4:], text)


def _split(found: Tags, text: str) -> None:
    """What is no split is recorded and not trained on: nobody wrote that it may be."""
    if not text or found.split is not None:
        return
    if text in _SPLITS:
        found.split = text
    else:
        found.split = "eval"
        _tag(found, SPLIT_TEXT, text)
        log.warning("a call's x-slipstream-split is none of %s: taken as eval", ", ".join(_SPLITS))


def _capture(found: Tags, text: str) -> None:
    """What says neither yes nor no is not recorded: nobody wrote that it may be."""
    if text and found.captured is None:
        found.captured = _is_true(text)


def _kind(found: Tags, text: str) -> None:
    if text and not found.kind:
        found.kind = name_of(text) if found.redaction is None else found.redaction.name("kind", text)


_SIDE: Final = (b"x-openai-subagent", b"x-claude-code-agent-id", b"x-parent-session-id")
_OF_SUBAGENT: Final = {b"compact": "compaction", b"memory_consolidation": "summary"}
"""What Codex calls its side calls that are no sub-agent's."""


def hint_kind(found: Tags, headers: Mapping[bytes, bytes]) -> None:
    """The kind that agents' own headers say."""
    if found.kind:
        return
    for name in _SIDE:
        value = headers.get(name)
        if value:
            found.kind = _OF_SUBAGENT.get(value, "subagent")
            return


def _is_true(text: str) -> bool:
    return text.strip().lower() in ("true", "1", "yes", "on")


def _tag(found: Tags, name: str, text: str) -> None:
    if len(found.tags) < MAX_TAGS:
        if found.redaction is None:
            found.tags.setdefault(name_of(name), tag_text(text))
            return
        named = found.redaction.name("tag_name", name)
        if len(text) > MOST_RAW_TAG:
            text = tag_text(found.redaction.text(f"tag.{named}", text))
        found.tags.setdefault(named, text)


def _metadata(found: Tags, body: JsonObject, *, done: bool) -> None:
    """``done``: whether this says if it is done; a header was first."""
    metadata: JsonObject = body["metadata"]
    ours = [k for k in metadata if k.startswith("slipstream_")]
    if not ours:
        return
    for name in ours:
        value = metadata[name]
        text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
        if name != "slipstream_done" or done:
            _say(found, name.removeprefix("slipstream_"), text, "metadata")
    left = {k: v for k, v in metadata.items() if k not in ours}
    if left:
        body["metadata"] = left
    else:
        del body["metadata"]
