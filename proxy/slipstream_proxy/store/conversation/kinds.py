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

from slipstream_proxy.dialects.purpose import COMPACTION, SUMMARY, ends, order, orders, purpose
from slipstream_proxy.store.conversation.fingerprint import digest
from slipstream_proxy.store.tables.rows import dump, load

MAIN, SUBAGENT, SIDE = "main", "subagent", "side"
SUMMED = {kind: kind for kind in (SUMMARY, COMPACTION)}
_TALK = r"(?:conversation|session|chat|thread|transcript)s?"
_ASKED = re.compile(
    r"(?i)context checkpoint"
    rf"|\b(?:create|write|provide|generate)\b[^.\n]{{0,60}}\b(?:summary|prompt)\b[^.\n]{{0,80}}\b{_TALK}\b"
    rf"|\bsummari[sz]e (?:our|this|the)(?: \w+)? {_TALK}\b|\bcompact the (?:\w+ )?(?:{_TALK}|context)\b"
)
"""How an agent asks its own conversation for a summary. A person may ask so, too: it is a label and no more."""


@dataclass(slots=True)
class Opening:
    """How a conversation begins, and what it asks last."""

    system: bytes
    first: bytes
    instruction: str
    """The beginning and the end of the system prompt and of the last message."""
    last: str
    tools: bool
    order: str | None = None
    """A digest of what it asks last, if that is not short."""

    @classmethod
    def of(cls, messages: Sequence[object], *, tools: bool) -> Opening:
        roles = [m.get("role") if isinstance(m, dict) else None for m in messages]
        count = next((n for n, role in enumerate(roles) if role not in ("system", "developer")), len(roles))
        system = "\n".join(_text(m) for m in messages[:count])
        asked = _text(messages[-1]) if len(messages) > count else ""
        last = ends(asked)
        first = digest(dump(messages[count])) if len(messages) > count else b""
        return cls(digest(system), first, f"{ends(system)}\n{last}", last, tools, order(asked))


def _text(message: object) -> str:
    content = message.get("content") if isinstance(message, dict) else message
    if isinstance(content, list):
        content = "\n".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
    return content if isinstance(content, str) else ""


@dataclass(slots=True)
class EpisodeKinds:
    """The kinds of one run's calls."""

    lead: Opening | None = None
    """Of the agent's own conversation, without its texts."""
    _others: dict[str, str] = field(default_factory=dict)
    """Call → kind, where it is not ``main``."""
    _orders: set[str] = field(default_factory=set)
    """What the calls' replies handed on in their tool calls."""

    def of(self, opening: Opening, extends: str | None, said: str) -> str:
        """A new call's kind. ``said``: what it says itself, or nothing."""
        if said:
            return said
        if extends is not None:
            before = self._others.get(extends, MAIN)
            if self.lead is not None and self.lead.tools and not opening.tools:  # its own history under another prompt
                return SUMMED.get(purpose(opening.instruction) or "", before)
            if before in (MAIN, COMPACTION):
                return COMPACTION if _ASKED.search(opening.last) else MAIN
            return before
        if not opening.tools and (found := purpose(opening.instruction)) is not None:
            return found
        lead = self.lead
        if lead is None or (opening.tools and not lead.tools):
            return MAIN
        if lead.tools and not opening.tools:
            return SIDE
        if opening.order is not None and opening.order in self._orders and opening.order != lead.order:
            return SUBAGENT
        if opening.system == lead.system or opening.first == lead.first:
            return COMPACTION if _ASKED.search(opening.last) else MAIN
        return SUBAGENT

    def note(self, call: str, kind: str, opening: Opening, replies: Sequence[str] = ()) -> None:
        """A call of this kind is stored. ``replies``: their JSON."""
        for reply in replies:
            if '"tool_calls"' in reply:
                self._orders.update(orders(load(reply)))
        if kind != MAIN:
            self._others[call] = kind
        elif self.lead is None or (opening.tools and not self.lead.tools):
            self.lead = Opening(opening.system, opening.first, "", "", opening.tools, opening.order)

    @property
    def size(self) -> int:
        return 160 * len(self._others) + 120 * len(self._orders)
