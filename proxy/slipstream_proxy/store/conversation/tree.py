"""Which call each call goes on with, and the order of calls and rewards.

The conversation tree: which call of its episode each call goes on with.

A call *extends* the one whose prompt and reply it begins with. That is decided by, in this order: its tokens; an id
that the engine gave (a tool call's or a response's) and that the call hands back; its messages, with the reply as it
came or, where a client writes replies in its own way, with an assistant's message in its place. A call of which none is
true begins a conversation: a run's first call, a sub-agent's, or one after a compaction.

The order of an episode's calls, and of its rewards, where several proxies write into one store.

A call's number says how many calls of its episode were acknowledged before it. One proxy's calls are stored in that
order. Another proxy's may be stored later than they were acknowledged: it was busy, or it was killed and started again.
Such a call is put where it belongs:

1. Calls of one machine stand in the order of its monotonic clock, which all its processes share and nobody sets.
2. A call stands behind the call that it extends, and before those that extend it.
3. Otherwise calls of different machines stand in the order of the times at which they were acknowledged, by the store's
   clock. A machine's own wall clock may be wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from slipstream_proxy.store.conversation.fingerprint import BLOCK_TOKENS, TokenEnd, digest_of, pieces_of
from slipstream_proxy.store.tables.rows import Ids

REPLY_TYPES = ("function_call", "custom_tool_call", "tool_use")

RESULT_TYPES = ("function_call_output", "custom_tool_call_output", "tool_result")


def _parts(message: object) -> Iterator[dict[str, object]]:
    """A message, and the blocks that its content is made of."""
    if isinstance(message, list):
        for item in message:
            yield from _parts(item)
    elif isinstance(message, dict):
        yield message
        content = message.get("content")
        if isinstance(content, list):
            yield from (part for part in content if isinstance(part, dict))


def _texts(*values: object) -> list[str]:
    return [v for v in values if isinstance(v, str) and v]


def issued_ids(reply: object) -> list[str]:
    """Ids of tool calls in a reply, in whichever format it is."""
    found: list[str] = []
    for part in _parts(reply):
        calls = part.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            found += _texts(call.get("id")) if isinstance(call, dict) else ()
        if part.get("type") in REPLY_TYPES:
            found += _texts(part.get("call_id") or part.get("id"))
    return found


def is_reply(message: object) -> bool:
    """Whether an assistant wrote the message (an item of the responses API may be one without a role)."""
    if not isinstance(message, dict):
        return False
    return message.get("role") == "assistant" or message.get("type") in (*REPLY_TYPES, "reasoning")


def words_of(message: object) -> bytes | None:
    """Hash of an assistant's words, without the fields, spaces and case in which clients differ.

    None: it is no assistant's message.
    """
    if not is_reply(message):
        return None
    texts = [
        t for part in _parts(message) for t in _texts(part.get("content"), part.get("text"), part.get("arguments"))
    ]
    # in pieces, because a list of a long text's words takes ten times its memory
    return digest_of("".join(piece.split()).casefold() for piece in pieces_of("".join(texts)))


def returned_ids(messages: Sequence[object]) -> list[str]:
    """Ids of the tool calls whose results stand at the end of a prompt, the last one first."""
    found: list[str] = []
    for message in reversed(messages):
        if is_reply(message):
            break
        for part in _parts(message):
            found += _texts(part.get("tool_call_id"))
            if part.get("type") in RESULT_TYPES:
                found += _texts(part.get("call_id") or part.get("tool_use_id"))
    return found


@dataclass(slots=True)
class Asked:
    """A call's prompt as the tree looks at it."""

    chain: list[bytes]
    """One chained hash for each of its messages."""
    replies: list[bytes | None]
    """The words of each message that an assistant wrote (``words_of``)."""
    ids: Ids
    blocks: Sequence[bytes]
    returned: list[str]
    """Ids that the engine gave and the call hands back."""


@dataclass(slots=True)
class Answered:
    """A call with its replies, as later ones may extend it."""

    id: str
    prompt: bytes
    """The last link of its messages' chain."""
    words: list[bytes | None]
    """One fingerprint for each of its replies."""
    ends: list[bytes]
    """The chain's last link with each of its replies."""
    tokens: list[TokenEnd]
    """Prompt and completion of each choice that has tokens."""
    issued: list[str]


@dataclass(slots=True)
class ConversationTree:
    """An episode's calls that were answered."""

    _ends: dict[bytes, list[str]] = field(default_factory=lambda: defaultdict(list))
    _prompts: dict[bytes, list[tuple[list[bytes | None], str]]] = field(default_factory=lambda: defaultdict(list))
    _tokens: dict[TokenEnd, list[str]] = field(default_factory=lambda: defaultdict(list))
    _lengths: dict[bytes, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Hash of the whole blocks → how long the sequences are that have them: less than a block's difference, so that a
    look at them costs the same however many calls there are."""
    _issued: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _extended: set[str] = field(default_factory=set)
    size: int = 0

    def add(self, call: Answered) -> None:
        for end in call.ends:
            self._ends[end].append(call.id)
        if call.ends:
            self._prompts[call.prompt].append((call.words, call.id))
        for tokens in call.tokens:
            self._tokens[tokens].append(call.id)
            self._lengths[tokens.block].add(tokens.length)
        for name in call.issued:
            self._issued[name].add(call.id)
        self.size += 700 + 400 * len(call.tokens)

    def mark(self, call: str | None) -> None:
        """A stored call extends this one."""
        if call is not None:
            self._extended.add(call)

    def extends(self, asked: Asked) -> str | None:
        """The call that this one goes on with. None: it begins a conversation."""
        found = self._by_tokens(asked) or self._by_id(asked) or self._by_messages(asked)
        self.mark(found)
        return found

    def _first(self, calls: list[str]) -> str:
        """Among samples of one prompt, the first that no call extends yet, else the latest."""
        while len(calls) > 1 and calls[0] in self._extended:
            del calls[0]  # it is never the answer again
        return next((c for c in calls if c not in self._extended), calls[-1])

    def _by_tokens(self, asked: Asked) -> str | None:
        for whole in range(len(asked.ids) // BLOCK_TOKENS, -1, -1):
            block = asked.blocks[whole]
            for length in sorted(self._lengths.get(block, ()), reverse=True):
                if length < len(asked.ids) and (calls := self._tokens.get(TokenEnd.at(block, asked.ids, length))):
                    return self._first(calls)
        return None

    def _by_id(self, asked: Asked) -> str | None:
        for name in asked.returned:
            calls = self._issued.get(name, ())
            if len(calls) == 1:  # an id that two calls were given (parsers that count from 0) says nothing
                return next(iter(calls))
        return None

    def _by_messages(self, asked: Asked) -> str | None:
        for n in range(len(asked.chain) - 1, 0, -1):
            if found := self._ends.get(asked.chain[n]):
                return self._first(found)
            words = asked.replies[n] if n < len(asked.replies) else None
            if words is not None and (answered := self._prompts.get(asked.chain[n])):
                same = [call for said, call in answered if words in said]
                return self._first(same or [call for _, call in answered])
        return None
