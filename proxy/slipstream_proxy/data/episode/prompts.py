"""The prompts of running episodes, so that the engine sends each token id of a conversation once.

A call's prompt begins with most of the one before it. The proxy tells the engine's plugin which beginnings it knows, by
their lengths and digests. The plugin leaves out the longest one that the prompt begins with. The record gets these
ids back before it is written, so that it is whole, whatever is forgotten or lost later.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from slipstream_proxy.dialects.token_arrays import BASE64_UNIT_IDS, UNIT_TEXT, PromptPart, prompt_part

if TYPE_CHECKING:
    from slipstream_proxy.data.episode.running import RunningEpisode
    from slipstream_proxy.json_types import JsonObject

MAX_REMEMBERED_BYTES: Final = 64 * 2**20
"""Bytes that a worker remembers: 12 million ids."""
_EACH: Final = 4
"""Prompts of one episode: its sub-agents' take turns."""


class PromptPrefix:
    """A prompt's first ``count`` ids, as the base64 ``text`` in which they came."""

    __slots__ = ("count", "digest", "text")

    def __init__(self, count: int, digest: str, text: bytes) -> None:
        self.count, self.digest, self.text = count, digest, text


Prefixes = list[PromptPrefix]
"""What is known of an episode when a call of it begins. Such a list is replaced and never changed, so that the call
keeps what it named until its reply is there.
"""
_NONE: Final[Prefixes] = []


def asking(prefixes: Prefixes) -> JsonObject:
    """What the request says of them to the engine. An older plugin sees only that something is asked."""
    return {"prefixes": [[p.count, p.digest] for p in prefixes]}


class PromptMemory:
    """A worker's memory of prompts. Beyond ``limit`` bytes the episodes that were quiet the longest are forgotten."""

    def __init__(self, limit: int = MAX_REMEMBERED_BYTES) -> None:
        self.limit = limit
        self.size = 0
        """Bytes that are remembered."""
        self._known: OrderedDict[RunningEpisode, Prefixes] = OrderedDict()

    def of(self, episode: RunningEpisode) -> Prefixes:
        return self._known.get(episode, _NONE)

    def whole(self, episode: RunningEpisode, named: Prefixes, reply: bytes, *, stream: bool) -> bytes:
        """The reply with all ids of its prompt, and what it says of them is remembered. ``named``: what the request
        said that is known. Never raises; ids that cannot be put back make the call unreadable, and not another call.
        """
        part = prompt_part(reply, stream=stream)
        if part is None:
            return reply
        text = b""
        if part.shared:
            found = [p for p in named if p.count == part.shared]
            if not found:
                return reply
            text = found[0].text
        self._remember(episode, part, text, reply)
        return part.whole(reply, text) if part.shared else reply

    def _remember(self, episode: RunningEpisode, part: PromptPart, text: bytes, reply: bytes) -> None:
        known = self._known.pop(episode, _NONE)
        self.size -= _size(known)
        if episode.done:
            return
        units, odd = divmod(part.count - part.shared, BASE64_UNIT_IDS)
        end = part.start + units * UNIT_TEXT
        if odd or part.count < 1 or not part.start <= end <= part.end:
            return
        made = PromptPrefix(part.count, part.digest, text + reply[part.start : end])
        # The call goes on where the one before it ended, and takes its place. Of one length there is one, so that the
        # length in a reply says which is meant.
        kept = [p for p in known if p.count not in (part.shared, part.count)]
        kept = [*kept[-(_EACH - 1) :], made]
        self._known[episode] = kept
        self.size += _size(kept)
        while self.size > self.limit:
            _, gone = self._known.popitem(last=False)
            self.size -= _size(gone)


def _size(prefixes: Prefixes) -> int:
    size = 0
    for prefix in prefixes:
        size += len(prefix.text)
    return size
