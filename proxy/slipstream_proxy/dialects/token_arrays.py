"""What an engine with Slipstream's plugin sends in place of ids and log-probabilities as JSON.

The engine is asked by one member of the request, and answers as it would have answered the client, with one more
member at the end of each reply or event (``slipstream_vllm.packing`` describes it). So the client's bytes are those
before the member.
"""

from __future__ import annotations

import re
import sys
from array import array
from binascii import a2b_base64
from dataclasses import dataclass, field
from typing import Final

from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.log.records import Choice

CAPTURE_FIELD: Final = "slipstream_capture"
PACKED_FIELD: Final = "slipstream"
PACKED_MEMBER: Final = b',"slipstream":{"v":'
_ALONE: Final = b'data: {"slipstream":'
_ANY: Final = re.compile(rb'("slipstream"\s*:\s*)\{[^{}]*\}')
# Quotes inside a JSON string are escaped, so that no text of a model can look like the member.
_PROMPT: Final = b'"slipstream":{"v":1,"p":[[0,"'
BASE64_UNIT_IDS: Final = 3
"""Ids whose base64 is whole: a text of a multiple of them can be cut off and put together again."""
UNIT_TEXT: Final = 16
"""Characters of their base64."""


def cut(reply: bytes) -> bytes:
    """A whole reply without the member."""
    at = reply.rfind(PACKED_MEMBER)
    return reply if at < 0 else reply[:at] + b"}"


def cut_event(event: bytes) -> bytes | None:
    """An event without the member; None: it holds nothing else."""
    at = event.rfind(PACKED_MEMBER)
    if at < 0:
        return None if event.startswith(_ALONE) else event
    end = event.rfind(b"}")
    return event[:at] + event[end:]


def null_members(text: bytes) -> bytes:
    """A reply or a recorded stream, perhaps rewritten by somebody else, with null for each member's value."""
    return _ANY.sub(rb"\1null", text)


def prompt_length(read: JsonObject) -> int:
    """How many ids the prompt has of which the member of an event tells; 0: it tells of none."""
    member = read.get(PACKED_FIELD)
    prompts = member.get("p") if isinstance(member, dict) else None
    if not prompts:
        return 0
    _, text, *more = prompts[0]
    sent: int = (len(text) // 4 * 3 - text.count("=", -2)) // 4
    return sent + more[0] if more else sent


class PromptPart:
    """Where a reply's member tells of the prompt: ``reply[start:end]`` is the base64 of its ids behind the first
    ``shared``, which the engine left out because the proxy knows them. What follows, up to ``stop``, says so.

    ``digest`` tells the prompt's first ``count`` ids.
    """

    __slots__ = ("count", "digest", "end", "shared", "start", "stop")

    def __init__(self, start: int, end: int, stop: int, shared: int, count: int, digest: str) -> None:
        self.start, self.end, self.stop = start, end, stop
        self.shared, self.count, self.digest = shared, count, digest

    def whole(self, reply: bytes, known: bytes) -> bytes:
        """The reply as the engine sends it to somebody who knows nothing. ``known``: base64 of the ids left out."""
        return b"".join((reply[: self.start], known, reply[self.start : self.end + 1], reply[self.stop :]))


def prompt_part(reply: bytes, *, stream: bool) -> PromptPart | None:
    """None: the engine did not tell what it left out (an older plugin, a short prompt), and left out nothing."""
    at = reply.find(_PROMPT) if stream else reply.rfind(_PROMPT)
    if at < 0:
        return None
    start = at + len(_PROMPT)
    end = reply.find(b'"', start)
    stop = reply.find(b"]", end) if end >= 0 else -1
    if stop < end + 2:  # compiled, a slice must not end before it begins
        return None
    fields = reply[end + 2 : stop].split(b",")
    if len(fields) != 3:
        return None
    try:
        return PromptPart(start, end, stop, int(fields[0]), int(fields[1]), fields[2].strip(b'"').decode("ascii"))
    except ValueError:
        return None


@dataclass(slots=True)
class Sampled:
    """What the members of a reply hold, by choice."""

    prompt: list[int] = field(default_factory=list)
    ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[float]] = field(default_factory=dict)
    found: bool = False

    def add(self, read: JsonObject) -> None:
        """Take over the member of one reply or event, if it has one. Raises whatever is wrong with it."""
        member = read.get(PACKED_FIELD)
        if not isinstance(member, dict):
            return
        self.found = True
        for _, ids, *more in member.get("p", ())[:1]:
            if more and more[0] != 0:
                raise ValueError("the engine left out ids of the prompt")
            self.prompt = _unpack("i", ids)
        for index, ids, logprobs in member.get("c", ()):
            self.ids.setdefault(index, []).extend(_unpack("i", ids))
            self.logprobs.setdefault(index, []).extend(_unpack("f", logprobs))

    def fill(self, choices: dict[int, Choice]) -> None:
        """Give each choice what was sampled for it."""
        for index, choice in choices.items():
            choice.completion_ids = self.ids.get(index, [])
            choice.logprobs = self.logprobs.get(index, [])


def _unpack(kind: str, text: str) -> list:  # type: ignore[type-arg]
    values = array(kind, a2b_base64(text, strict_mode=True))
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
