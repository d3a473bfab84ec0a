"""What an engine with Slipstream's plugin sends in place of ids and log-probabilities as JSON.

The engine is asked by one member of the request, and answers as it would have answered the client, with one more
member at the end of each reply or event (``slipstream_vllm.packing`` describes it). So the client's bytes are those
before the member.
"""

from __future__ import annotations

import re
import sys
from array import array
from base64 import b64decode
from dataclasses import dataclass, field
from typing import Final

from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.records import Choice

ASKED: Final = "slipstream_capture"
FIELD: Final = "slipstream"
_MEMBER: Final = b',"slipstream":{"v":'
_ALONE: Final = b'data: {"slipstream":'
_ANY: Final = re.compile(rb'("slipstream"\s*:\s*)\{[^{}]*\}')
# Quotes inside a JSON string are escaped, so that no text of a model can look like the member.


def cut(reply: bytes) -> bytes:
    """A whole reply without the member."""
    at = reply.rfind(_MEMBER)
    return reply if at < 0 else reply[:at] + b"}"


def cut_event(event: bytes) -> bytes | None:
    """An event without the member; None: it holds nothing else."""
    at = event.rfind(_MEMBER)
    if at < 0:
        return None if event.startswith(_ALONE) else event
    end = event.rfind(b"}")
    return event[:at] + event[end:]


def null_members(text: bytes) -> bytes:
    """A reply or a recorded stream, perhaps rewritten by somebody else, with null for each member's value."""
    return _ANY.sub(rb"\1null", text)


def prompt_length(read: JsonObject) -> int:
    """How many ids of the prompt the member of an event holds; 0: it has none."""
    member = read.get(FIELD)
    prompts = member.get("p") if isinstance(member, dict) else None
    return len(b64decode(prompts[0][1])) // 4 if prompts else 0


@dataclass(slots=True)
class Sampled:
    """What the members of a reply hold, by choice."""

    prompt: list[int] = field(default_factory=list)
    ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[float]] = field(default_factory=dict)
    found: bool = False

    def add(self, read: JsonObject) -> None:
        """Take over the member of one reply or event, if it has one. Raises whatever is wrong with it."""
        member = read.get(FIELD)
        if not isinstance(member, dict):
            return
        self.found = True
        for _, ids in member.get("p", ())[:1]:
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
    values = array(kind, b64decode(text, validate=True))
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()
