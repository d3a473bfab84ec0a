"""What a call is in its run: the agent's own (``main``), or a side call.

A call that says its kind has that one. A call that goes on with another one is what that one is. Of the others, which
begin a conversation, the first with tools leads the run. Those with its system prompt or its first message are its own,
too: a rewritten history, or a clock in the prompt. Without tools where the run has some, a call is a side call, and
its instruction says which: a title, a summary, a compaction. With tools and another system prompt it is a sub-agent's,
and so is one that asks just what a tool call of the run handed on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slipstream_proxy.dialects.purpose import COMPACTION_KIND, SUMMARY_KIND, ends, order, orders, purpose
from slipstream_proxy.store.conversation.fingerprint import digest
from slipstream_proxy.store.tables.rows import dump, load

MAIN_KIND, SUBAGENT_KIND, SIDE_KIND = "main", "subagent", "side"
SUMMED_KINDS = {kind: kind for kind in (SUMMARY_KIND, COMPACTION_KIND)}
_TALK = r"(?:conversation|session|chat|thread|transcript)s?"
_ASKED = re.compile(
    r"(?i)context checkpoint"
    rf"|\b(?:create|write|provide|generate)\b[^.\n]{{0,60}}\b(?:summary|prompt)\b[^.\n]{{0,80}}\b{_TALK}\b"
    rf"|\bsummari[sz]e (?:our|this|the)(?: \w+)? {_TALK}\b|\bcompact the (?:\w+ )?(?:{_TALK}|context)\b"
)
"""How an agent asks its own conversation for a summary. A person may ask so, too: it is a label and no more."""
_WORDS = ("checkpoint", "summar", "prompt", "compact")
"""Without any of them nothing is asked so; they are found much sooner."""


class Lead(NamedTuple):
    """How the agent's own conversation begins."""

    system: bytes
    first: bytes
    tools: bool
    order: str | None


class Opening:
    """How a conversation begins, and what it asks last. Most calls go on with another one and need little of it."""

    __slots__ = ("_head", "messages", "tools")

    def __init__(self, messages: Sequence[object], *, tools: bool) -> None:
        self.messages, self.tools = messages, tools
        self._head = 0
        """Messages before the first one that is no instruction."""
        for message in messages:
            if not (isinstance(message, dict) and message.get("role") in ("system", "developer")):
                break
            self._head += 1

    @property
    def _system(self) -> str:
        return "\n".join(_text(m) for m in self.messages[: self._head])

    @property
    def _asked(self) -> str:
        return _text(self.messages[-1]) if len(self.messages) > self._head else ""

    @property
    def last(self) -> str:
        return ends(self._asked)

    @property
    def instruction(self) -> str:
        """The beginning and the end of the system prompt and of the last message."""
        return f"{ends(self._system)}\n{self.last}"

    @property
    def order(self) -> str | None:
        """A digest of what it asks last, if that is not short."""
        return order(self._asked)

    @property
    def lead(self) -> Lead:
        first = digest(dump(self.messages[self._head])) if len(self.messages) > self._head else b""
        return Lead(digest(self._system), first, self.tools, self.order)


def _text(message: object) -> str:
    content = message.get("content") if isinstance(message, dict) else message
    if isinstance(content, list):
        content = "\n".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
    return content if isinstance(content, str) else ""


def _main(asked: str) -> str:
    """The kind of a call of the agent's own that asks this."""
    low = asked.lower()
    return COMPACTION_KIND if any(word in low for word in _WORDS) and _ASKED.search(asked) else MAIN_KIND


@dataclass(slots=True)
class EpisodeKinds:
    """The kinds of one run's calls."""

    lead: Lead | None = None
    _others: dict[str, str] = field(default_factory=dict)
    """Call → kind, where it is not ``main``."""
    _orders: set[str] = field(default_factory=set)
    """What the calls' replies handed on in their tool calls."""

    def of(self, opening: Opening, extends: str | None, said: str) -> str:
        """A new call's kind. ``said``: what it says itself, or nothing."""
        if said:
            return said
        if extends is not None:
            before = self._others.get(extends, MAIN_KIND)
            if self.lead is not None and self.lead.tools and not opening.tools:  # its own history under another prompt
                return SUMMED_KINDS.get(purpose(opening.instruction) or "", before)
            if before in (MAIN_KIND, COMPACTION_KIND):
                return _main(opening.last)
            return before
        if not opening.tools and (found := purpose(opening.instruction)) is not None:
            return found
        lead = self.lead
        if lead is None or (opening.tools and not lead.tools):
            return MAIN_KIND
        if lead.tools and not opening.tools:
            return SIDE_KIND
        own = opening.lead
        if own.order is not None and own.order in self._orders and own.order != lead.order:
            return SUBAGENT_KIND
        if own.system == lead.system or own.first == lead.first:
            return _main(opening.last)
        return SUBAGENT_KIND

    def note(self, call: str, kind: str, opening: Opening, replies: Sequence[str] = ()) -> None:
        """A call of this kind is stored. ``replies``: their JSON."""
        for reply in replies:
            if '"tool_calls"' in reply:
                self._orders.update(orders(load(reply)))
        if kind != MAIN_KIND:
            self._others[call] = kind
        elif self.lead is None or (opening.tools and not self.lead.tools):
            self.lead = opening.lead

    @property
    def size(self) -> int:
        return 160 * len(self._others) + 120 * len(self._orders)
