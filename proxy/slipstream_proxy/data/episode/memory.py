"""The worker's memory of running episodes: their pins, and which conversation an untagged call continues.

It is a cache: the control plane's pins are the truth, and what is forgotten here starts a new episode.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from slipstream_proxy.data.episode.ids import new_id
from slipstream_proxy.data.episode.running import Name, RunningEpisode
from slipstream_proxy.dialects.chat import SHORT_EVENT_BYTES
from slipstream_proxy.dialects.purpose import COMPACTION_KIND, SUMMARY_KIND, ConversationStart

if TYPE_CHECKING:
    from slipstream_proxy.data.episode.shared_table import SharedTable
    from slipstream_proxy.data.episode.split_names import SplitNames
    from slipstream_proxy.data.wire.identity import Tags
    from slipstream_proxy.dialects.base import Turn
    from slipstream_proxy.json_types import JsonObject

_monotonic: Final[Callable[[], float]] = time.monotonic


@dataclass(slots=True)
class _Tip:
    """The end of a conversation, and the episodes that stand there."""

    episodes: list[Name]
    used: int = 0
    at: float = 0.0


_SAME: Final = 128
"""Runs that stand at the same place of a conversation; of one that is asked for ever the older ones are forgotten."""


_ORDERS: Final = 8
"""Texts of a reply's tool calls that are remembered."""
_LATEST: Final = 8
"""Messages at the end of a request that are looked at for the last reply."""


class EpisodeMemory:
    def __init__(
        self,
        *,
        window: float = 1800.0,
        limit: int = 100_000,
        shared: SharedTable | None = None,
        split_names: SplitNames | None = None,
    ) -> None:
        """``shared``: what other workers know. ``split_names``: which names a restart leaves known."""
        self.window = window
        self.limit = limit
        self.shared = shared
        self.split_names = split_names
        self._known: OrderedDict[Name, RunningEpisode] = OrderedDict()
        self._tools: OrderedDict[tuple[str, str], Name | None] = OrderedDict()
        self._tips: OrderedDict[tuple[str, bytes], _Tip] = OrderedDict()
        self._failed: OrderedDict[tuple[str, bytes], list[Name]] = OrderedDict()
        self._facts: OrderedDict[tuple[str, str, str], str] = OrderedDict()
        """(kind, key, session's name) → what is known of the name."""
        self._split: str | None = None

    def of(self, key: str, tags: Tags, turn: Turn | None, body: JsonObject | None = None) -> RunningEpisode:
        """The episode of a call: the named one, the one it continues or quotes, or a new one.

        ``body``: of an untagged call.
        """
        name = tags.episode
        origin = tags.origin
        if turn is not None and (name is None or (tags.doubtful and body is not None)):
            start = ConversationStart(body) if body is not None else None
            found = self._linked(key, tags, turn, start)
            if found is not None:
                origin = "continued" if found[1] != name else origin
                name = found[1]
            elif name is not None and start is not None and not self._is_one_run(key, name, tags, turn, start):
                name = None
        if name is None:
            name, origin = f"ep-{new_id(time.time())}", "new"
        tags.origin = origin
        return self._get((key, name), tags)

    def _linked(self, key: str, tags: Tags, turn: Turn, start: ConversationStart | None) -> Name | None:
        """The episode that what is said belongs to."""
        found = self._continued(key, turn)
        if found is None and start is not None:
            found = None if turn.has_reply else self._quoted(key, turn, start)
            if found is None and (order := start.order()) is not None:
                found = self._ordered(key, order)
                tags.kind = tags.kind or ("subagent" if found is not None else "")
        return found

    # --- names that may stand for many runs ---------------------------------------------------------------------------

    def _is_one_run(self, key: str, name: str, tags: Tags, turn: Turn, start: ConversationStart) -> bool:
        """Whether a session's name still stands for one run, where this conversation goes on with none that is known.

        It does not once a second conversation begins as the first one did, with the same system prompt and tools. One
        that begins otherwise is a sub-agent, and one that has replies goes on with what was said elsewhere.
        """
        if self._is_split(key, name):
            return False
        first, here = self._fact("first", key, name), _Beginning(turn, start)
        self._note("first", key, name, first or here.text)
        if first is None or tags.kind or start.purpose() is not None:
            return True
        assert tags.session is not None
        if not here.is_another(_Beginning.read(first), same_counts=tags.session.weak):
            return True
        self._note_split(key, name)
        self._split = tags.session.doubt
        return False

    def _is_split(self, key: str, name: str) -> bool:
        """Whether the name stands for many runs, as this worker or another has found, before a restart or since."""
        if self.split_names is not None:
            return self.split_names.has(key, name)
        if self._fact("many", key, name) is None:
            return False
        self._note("many", key, name, "-")  # it is remembered as long as it is used
        return True

    def _note_split(self, key: str, name: str) -> None:
        if self.split_names is not None:
            self.split_names.add(key, name)
        else:
            self._note("many", key, name, "-")

    def take_split(self) -> str | None:
        """The field of a session's name that has just turned out to stand for many runs."""
        split, self._split = self._split, None
        return split

    def _fact(self, kind: str, key: str, name: str) -> str | None:
        if self.shared is None:
            return self._facts.get((kind, key, name))
        return next(iter(self.shared.names(kind, key, name.encode())), None)

    def _note(self, kind: str, key: str, name: str, fact: str) -> None:
        if self.shared is not None:
            self.shared.only(kind, key, name.encode(), fact)
            return
        self._facts[kind, key, name] = fact
        self._facts.move_to_end((kind, key, name))
        if len(self._facts) > self.limit:
            self._facts.popitem(last=False)

    def _get(self, name: Name, tags: Tags) -> RunningEpisode:
        now = _monotonic()
        episode = self._known.get(name)
        finished = self._finished(name) if self.shared is not None else 0
        if episode is None or episode.done or finished >= episode.generation:
            generation = max(finished, episode.generation if episode is not None else 0) + 1
            episode = RunningEpisode(name, generation, tags, now)
            self._known[name] = episode
            if len(self._known) > self.limit:
                self._known.popitem(last=False)
            if self.shared is not None:
                self.shared.only("begun", name[0], name[1].encode(), str(generation))
        elif now - episode.seen > 1.0:
            self._known.move_to_end(name)
        episode.seen = now
        if tags.task is not None:
            episode.task = tags.task
        if tags.split is not None:
            episode.split = tags.split
        if tags.tags and (both := {**episode.tags, **tags.tags}) != episode.tags:
            episode.tags = both
        return episode

    def has_begun(self, key: str, episode: str) -> bool:
        """Whether a call of the episode (by its stored id) came to any worker. False where that is forgotten."""
        name, _, generation = episode.partition("~")
        known = self._known.get((key, name))
        if known is not None and known.id == episode:
            return True
        found = self.shared.names("begun", key, name.encode()) if self.shared is not None else []
        return (generation or "1") in found

    def finish(self, key: str, episode: str) -> None:
        """It was told that the episode (by its stored id) is done: its name's next call starts another one."""
        known = self._known.get((key, episode.partition("~")[0]))
        if known is not None and known.id == episode:
            self.end(known)
        elif self.shared is not None:
            name, _, generation = episode.partition("~")
            self.shared.only("done", key, name.encode(), generation if generation.isdigit() else "1")

    def end(self, episode: RunningEpisode) -> None:
        """Its last call was answered."""
        episode.done = True
        if self.shared is not None:
            key, name = episode.name
            self.shared.only("done", key, name.encode(), str(episode.generation))

    def _finished(self, name: Name) -> int:
        """The last generation of a name that any worker was told the end of."""
        assert self.shared is not None
        return max([int(n) for n in self.shared.names("done", name[0], name[1].encode())], default=0)

    # --- untagged calls that are sent again -------------------------------------------------------------------------

    def failed(self, key: str, body_hash: bytes, episode: RunningEpisode) -> None:
        """A call got no reply: its client may send it again, and that is no new run."""
        if self.shared is not None:
            self.shared.put("failed", key, body_hash, episode.name[1])
            return
        names = self._failed.setdefault((key, body_hash), [])
        names.append(episode.name)
        del names[:-_SAME]
        if len(self._failed) > self.limit:
            self._failed.popitem(last=False)

    def again(self, key: str, body_hash: bytes) -> str | None:
        """The episode of a call like this one that failed; each is given once, so that parallel runs stay apart."""
        now = time.monotonic()
        if self.shared is not None:
            return self._running(key, self.shared.claim("failed", key, body_hash, once=True))
        names = self._failed.pop((key, body_hash), [])
        while names:
            name = names.pop(0)
            if self._alive(name, now):
                if names:
                    self._failed[(key, body_hash)] = names
                return name[1]
        return None

    # --- continuation -----------------------------------------------------------------------------------------------

    def _alive(self, name: Name | None, now: float) -> bool:
        episode = self._known.get(name) if name is not None else None
        return episode is not None and not episode.done and now - episode.seen <= self.window

    def _continued(self, key: str, turn: Turn) -> Name | None:
        if not turn.has_reply:
            return None
        now = time.monotonic()
        for tool in reversed(turn.tool_ids):
            for known in _known_by(tool, turn.messages):
                if (name := self._only(key, known, now)) is not None:
                    return name
        chain = _chain(turn.messages)
        for digest in reversed(chain[:-1]):  # something must have been added to what was said
            name = self._standing(key, digest, now)
            if name is not None:
                return name
        for message in reversed(turn.messages[-_LATEST:]):  # what was before it may have been rewritten or cut off
            name = self._speaker(key, message, now)
            if name is not None:
                return name
        return None

    def _speaker(self, key: str, message: bytes, now: float) -> Name | None:
        """The one episode in which this was said."""
        if len(message) == SHORT_EVENT_BYTES:
            return None
        return self._only(key, f"said-{message.hex()}", now)

    def _only(self, key: str, said: str, now: float) -> Name | None:
        """The one episode that is known by this."""
        name = self._tools.get((key, said)) if self.shared is None else self._caller(key, said)
        return name if name is not None and (self.shared is not None or self._alive(name, now)) else None

    def _quoted(self, key: str, turn: Turn, request: ConversationStart) -> Name | None:
        """The run that a side call is about, or whose summary begins this conversation: it quotes its replies."""
        asked = request.purpose()
        turn.summary = asked in (SUMMARY_KIND, COMPACTION_KIND)
        kind, now = "says" if asked is not None else "sums", time.monotonic()
        for quote in request.quoted():
            if (name := self._only(key, f"{kind}-{quote}", now)) is not None:
                return name
        return None

    def _ordered(self, key: str, order: str) -> Name | None:
        """The run whose tool call told a sub-agent just this. What a run of its own began with is a task: agents repeat
        it in their calls, and other runs have it, too.
        """
        begun = f"begun-{order}"
        if self.shared is None:
            known = (key, begun) in self._tools
        else:
            known = bool(self.shared.names("tool", key, begun.encode()))
        if known:
            return None
        name = self._only(key, f"asks-{order}", time.monotonic())
        if name is None:
            if self.shared is None:
                self._tools[(key, begun)] = None
            else:
                self.shared.put("tool", key, begun.encode(), "-")
        return name

    def _standing(self, key: str, digest: bytes, now: float) -> Name | None:
        """An episode that stands there. Runs that said the same are interchangeable: each continues one of them."""
        if self.shared is not None:
            found = self._running(key, self.shared.claim("tip", key, digest))
            return (key, found) if found is not None else None
        tip = self._tips.get((key, digest))
        if tip is None or now - tip.at > self.window:
            return None
        for _ in range(len(tip.episodes)):
            name = tip.episodes[min(tip.used, len(tip.episodes) - 1)]
            tip.used += 1
            if self._alive(name, now):
                return name
        return None

    def _caller(self, key: str, tool: str) -> Name | None:
        """The one episode, of any worker, that was given this tool call."""
        assert self.shared is not None
        names = set(self.shared.names("tool", key, tool.encode("utf-8", "surrogatepass")))
        found = self._running(key, names.pop()) if len(names) == 1 else None
        return (key, found) if found is not None else None

    def _running(self, key: str, name: str | None) -> str | None:
        """None: it is done, as some worker was told."""
        if name is None:
            return None
        known = self._known.get((key, name))
        return name if self._finished((key, name)) < (known.generation if known is not None else 1) else None

    def remember(self, episode: RunningEpisode, asked: Turn, said: Turn) -> None:
        """After a reply: the next call of this conversation will begin with these messages."""
        key = episode.name[0]
        base = _chain(asked.messages)
        last = base[-1] if base else b""
        tips = [_link(last, message) for message in said.messages]
        given = [known for tool in said.tool_ids for known in _known_by(tool, said.messages)]
        given += [*(f"said-{message.hex()}" for message in said.messages if len(message) != SHORT_EVENT_BYTES)]
        # of a usual reply how it begins and how it calls: each takes a place in the table
        kind, quotes = ("sums", said.quotes) if asked.summary else ("says", {*said.quotes[:1], *said.quotes[-1:]})
        given += [f"{kind}-{quote}" for quote in quotes]
        given += [f"asks-{order}" for order in said.orders[:_ORDERS]]
        if self.shared is not None:
            for tool in given:
                self.shared.put("tool", key, tool.encode("utf-8", "surrogatepass"), episode.name[1])
            for digest in tips:
                self.shared.put("tip", key, digest, episode.name[1])
            return
        for tool in given:
            other = self._tools.get((key, tool), episode.name)
            # an id that two episodes were given (parsers that count from 0) says nothing, nor does what two have said
            self._tools[(key, tool)] = episode.name if other == episode.name else None
        for digest in tips:
            tip = self._tips.setdefault((key, digest), _Tip([]))
            tip.episodes.append(episode.name)
            if len(tip.episodes) > 2 * _SAME:
                del tip.episodes[:_SAME]
                tip.used = max(0, tip.used - _SAME)
            tip.at = time.monotonic()
            self._tips.move_to_end((key, digest))
        while len(self._tools) > self.limit:
            self._tools.popitem(last=False)
        while len(self._tips) > self.limit:
            self._tips.popitem(last=False)


class _Beginning:
    """How a conversation begins: what it is about (``frame``), its messages, and how many replies are among them."""

    __slots__ = ("chain", "count", "frame", "replies")

    def __init__(self, turn: Turn, start: ConversationStart) -> None:
        self.chain = [link.hex() for link in _chain(turn.messages)]
        self.count, self.frame, self.replies = len(self.chain), start.frame(), start.replies

    @property
    def text(self) -> str:
        return f"{self.frame}:{self.count}:{self.chain[-1] if self.chain else ''}:{self.replies}"

    @staticmethod
    def read(text: str) -> tuple[str, int, str, int]:
        frame, count, last, replies = text.split(":")
        return frame, int(count), last, int(replies)

    def is_another(self, first: tuple[str, int, str, int], *, same_counts: bool) -> bool:
        """``same_counts``: a run that begins with the same words is another one, too."""
        frame, count, last, replies = first
        if self.frame != frame or self.replies > replies:
            return False
        if self.count == count and self.chain[-1:] == [last]:
            return same_counts
        return not (self.count > count > 0 and self.chain[count - 1] == last)


_RUN = r"(?<![0-9A-Za-z])%s(?![0-9A-Za-z])"
_MIXED = r"(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])(?![A-Za-z]+[0-9]+(?![0-9A-Za-z]))[0-9A-Za-z]{8,}"
_DISTINCT = re.compile(f"{_RUN % _MIXED}|{_RUN % '[0-9A-Za-z]{20,}'}")
"""Letters and digits that no counter makes."""


def _known_by(tool: str, messages: list[bytes]) -> list[str]:
    """By what a tool call is known: by its id, or, where others have the same, by the message that holds it, too."""
    if tool.startswith("resp") or _DISTINCT.search(tool) is not None:  # a response's id is asked for by name
        return [tool]
    return [f"{tool}|{message.hex()}" for message in reversed(messages[-_LATEST:])]


def _link(before: bytes, message: bytes) -> bytes:
    return hashlib.blake2b(before + message, digest_size=16).digest()


def _chain(messages: list[bytes]) -> list[bytes]:
    """Digest of each prefix of the conversation."""
    chain, last = [], b""
    for message in messages:
        last = _link(last, message)
        chain.append(last)
    return chain
