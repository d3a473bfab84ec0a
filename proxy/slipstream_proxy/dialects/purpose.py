"""What a side call is for, and whose words it quotes.

A client that shortens its history often has the summary written by a call of its own: another system prompt, and the
conversation as one text. Nothing in that call names the run. But it quotes what the run's replies said.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from slipstream_proxy.dialects.base import loads
from slipstream_proxy.json_types import Json, JsonObject

TITLE_KIND, SUMMARY_KIND, COMPACTION_KIND = "title", "summary", "compaction"
LOOKED_AT: Final = 2000
"""Characters at either end of an instruction: it may quote all of a conversation."""
_TALK: Final = r"(?:conversation|session|chat|thread|transcript)s?"
_TITLE: Final = re.compile(
    r"(?i)\btitle generator\b"
    rf"|\b(?:generate|create|write|extract|suggest|produce)\b[^.\n]{{0,60}}\btitle\b[^.\n]{{0,120}}\b{_TALK}\b"
    rf"|\btitle (?:for|of) (?:this|the) (?:\w+ )?{_TALK}\b|\bnew {_TALK} topic\b"
)
_SUMMARY: Final = re.compile(
    r"(?i)\b(?:summar(?:y|ies|i[sz]\w+)|compact(?:s|ion|ing)?|condens\w+|hand-?off|checkpoint|continuation note)\b"
    rf"[^\n]{{0,200}}\b(?:{_TALK}|context (?:window|limit)|so far|another llm)\b"
    rf"|\b{_TALK}\b[^\n]{{0,200}}\bsummar(?:y|i[sz]\w+)\b"
)
_COMPACTION: Final = re.compile(
    r"(?i)\bcontext\b|\bcompact|\bcondens|\bhand-?off\b|\bcontinu|\bresum|\bso far\b|snapshot|\bchat history\b"
    r"|\banchored\b"
)
_WORD: Final = re.compile(r"\w+")
MIN_QUOTE_WORDS: Final = 8
"""Words of a quote: fewer are said by many."""
_LABEL: Final = 8
"""Words that may stand before a quote in its line, as ``[Assistant tool calls]: bash(command=``."""
_MOST: Final = 4
"""Quotes of a reply."""
_BEGINNING: Final = 160
"""Characters of a line in which its first words stand."""
_LINES: Final = 200
"""Lines at the end of a text in which quotes are looked for."""
_HEAD: Final = ("system", "developer")
_ARGUMENTS: Final = ("arguments", "input", "args")
"""What formats call what a tool is given."""
_LONGEST: Final = 100_000
"""Characters of what a sub-agent is told."""


def purpose(instruction: str) -> str | None:
    """What a call without tools is for, by its system prompt and its last message."""
    if _TITLE.search(instruction):
        return TITLE_KIND
    if _SUMMARY.search(instruction):
        return COMPACTION_KIND if _COMPACTION.search(instruction) else SUMMARY_KIND
    return None


def ends(text: str) -> str:
    return text if len(text) <= 2 * LOOKED_AT else f"{text[:LOOKED_AT]}\n{text[-LOOKED_AT:]}"


def texts(value: Json, depth: int = 6) -> list[str]:
    """All texts in a message or a part of one."""
    if isinstance(value, str):
        return [value]
    if depth == 0:
        return []
    if isinstance(value, list):
        return [text for item in value for text in texts(item, depth - 1)]
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item, depth - 1)]
    return []


def quotes(message: Json) -> list[str]:
    """How a reply would be quoted: digests of the words that its lines begin with."""
    found: list[str] = []
    for text in texts(message):
        for line in text[:LOOKED_AT].splitlines():
            words = _WORD.findall(line[:_BEGINNING])
            if len(words) >= MIN_QUOTE_WORDS:
                found.append(_digest(words, 0))
                if len(found) == _MOST:
                    return found
    return found


def orders(message: Json, depth: int = 6) -> list[str]:
    """Digests of the texts that a reply hands on in its tool calls: one may be all that a sub-agent is told."""
    found: list[str] = []
    if isinstance(message, list):
        for item in message:
            found += orders(item, depth)
    elif isinstance(message, dict) and depth:
        for name, value in message.items():
            if name in _ARGUMENTS:
                for text in texts(_parsed(value)):
                    if (digest := order(text)) is not None:
                        found.append(digest)
            elif isinstance(value, list | dict):
                found += orders(value, depth - 1)
    return found


def order(text: str) -> str | None:
    """None: it is so short that many say it."""
    words = text.split(None, MIN_QUOTE_WORDS)
    if len(words) < MIN_QUOTE_WORDS or len(text) > _LONGEST:
        return None
    return hashlib.blake2b(text.strip().encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _parsed(value: Json) -> Json:
    try:
        return loads(value.encode()) if isinstance(value, str) else value
    except ValueError:
        return None


def quoted(text: str) -> list[str]:
    """Digests of what a text may quote, the last lines first."""
    found: dict[str, None] = {}
    for line in reversed(text.splitlines()[-_LINES:]):
        words = _WORD.findall(line[: 2 * _BEGINNING])
        for at in range(min(_LABEL, len(words) - MIN_QUOTE_WORDS + 1)):
            found[_digest(words, at)] = None
    return list(found)


def _digest(words: list[str], at: int) -> str:
    return hashlib.blake2b(
        " ".join(words[at : at + MIN_QUOTE_WORDS]).encode("utf-8", "surrogatepass"), digest_size=16
    ).hexdigest()


_FRAME: Final = 64
"""Letters of a system prompt that are compared: later ones may be a date or a user's name."""


def _names(tools: Json, depth: int = 4) -> list[str]:
    """The names in a list of tools, of any format."""
    if isinstance(tools, list) and depth:
        return [name for tool in tools for name in _names(tool, depth - 1)]
    if isinstance(tools, dict) and depth:
        if isinstance(name := tools.get("name"), str):
            return [name]
        inner = (tools.get(n) for n in ("function", "functionDeclarations", "function_declarations"))
        return [name for value in inner for name in _names(value, depth - 1)]
    return []


class ConversationStart:
    """A request that begins a conversation, of any format."""

    __slots__ = ("_body", "_last", "_system", "_talk", "replies")

    def __init__(self, body: JsonObject) -> None:
        self._body = body
        self._system: list[str] = [
            t for name in ("system", "instructions", "systemInstruction") for t in texts(body.get(name))
        ]
        self._talk: list[str] = []
        """Texts of what follows the system prompt, a message each."""
        self.replies = 0
        said = next((body[name] for name in ("messages", "contents") if name in body), body.get("input"))
        self._last: Json = said[-1] if isinstance(said, list) and said else said
        for item in said if isinstance(said, list) else [said]:
            role = item.get("role") if isinstance(item, dict) else None
            kind = item.get("type") if isinstance(item, dict) else None
            self.replies += role in ("assistant", "model") or kind in ("function_call", "custom_tool_call")
            content = "\n".join(texts(item.get("content", item.get("parts")) if isinstance(item, dict) else item))
            if not self._talk and role in _HEAD:
                self._system.append(content)
            else:
                self._talk.append(content)

    def purpose(self) -> str | None:
        if self._body.get("tools"):
            return None
        last = self._talk[-1] if self._talk else ""
        return purpose(ends("\n".join(self._system)) + "\n" + ends(last))

    def frame(self) -> str:
        """A digest of what an application's runs have alike: how the system prompt begins, and the tools' names."""
        said = ["\n".join(self._system)[:_FRAME], *sorted(_names(self._body.get("tools")))]
        return hashlib.blake2b("\0".join(said).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def order(self) -> str | None:
        """What it is told last."""
        last = self._last
        if isinstance(last, dict):
            if last.get("role", "user") != "user":
                return None
            last = last.get("content", last.get("parts"))
        parts = [p.get("text") if isinstance(p, dict) else p for p in (last if isinstance(last, list) else [last])]
        return order("\n".join(t for t in parts if isinstance(t, str)))

    def quoted(self) -> list[str]:
        """Of the messages, not of the system prompt: an agent's memory may quote other runs there."""
        return quoted("\n".join(self._talk))
