"""Replies that refuse in plain words: told by how they begin."""

from __future__ import annotations

import re

MAX_REFUSAL_CHARS = 1200
"""A reply that is longer is not taken for a refusal: it says something else, too."""
PLAIN_REFUSAL_PATTERN = re.compile(
    r"""\W*(?:
    (?:(?:i(?:'m|\ am)\ )?(?:\w+\ )?(?:sorry|afraid|apologi[sz]e)\b[^.!?\n]{0,60}?\W)?(?:but\ |that\ )?
        i(?:\ am|'m)?\ (?:can'?t|cannot|can\ not|won'?t|will\ not|(?:un|not\ )able\ to
        |(?:must|have\ to)\ (?:decline|refuse))\ ?(?:\w+\ )?
        (?:help|assist|comply|do\ (?:that|this|so)|fulfil|provide|answer|support|engage|continue|create|generate
        |discuss|share|process|complete|be\ |$)
    | as\ an\ ai\b[^.!?\n]{0,80}\b(?:can'?t|cannot|unable|not\ able|won'?t)\b
    | entschuldigung\b[^.!?\n]{0,40}\b(?:kann|darf|werde)\b[^.!?\n]{0,80}\b(?:nicht|kein\w*)\b
    | (?:es\ )?tut\ mir\ leid\b[^.!?\n]{0,40}\b(?:kann|darf|werde)\b[^.!?\n]{0,80}\b(?:nicht|kein\w*)\b
    | (?:je\ suis\ )?désolée?\b[^.!?\n]{0,30}\bje\ ne\ (?:peux|suis)\ pas\b
    | lo\ siento\b[^.!?\n]{0,30}\bno\ puedo\b
    | (?:很?抱歉|对不起)[^。！？\n]{0,20}(?:无法|不能)
    | (?:申し訳|すみません)[^。\n]{0,40}(?:できません|できかね|いたしかね)
    )""",
    re.IGNORECASE | re.VERBOSE,
)
"""How replies begin that refuse in plain words."""


def refuses(message: object) -> bool:
    """Whether a message without tool calls begins as refusals do."""
    if not isinstance(message, dict) or message.get("tool_calls"):
        return False
    said = message.get("content")
    parts = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    texts = (p if isinstance(p, str) else p.get("text") if isinstance(p, dict) else None for p in parts)
    first = next((text for text in texts if isinstance(text, str) and text.strip()), "")
    return PLAIN_REFUSAL_PATTERN.match(first[:300].replace("\u2019", "'")) is not None
