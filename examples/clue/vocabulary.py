"""The small model's tokenizer and chat template.

The template drops the reasoning of every earlier turn, as the templates of reasoning models do. So what the model is asked
with is not what it was asked with before and what it said to that: each call of an episode stands for itself.
"""

from __future__ import annotations

from common import hermes
from transformers import PreTrainedTokenizerFast

from clue.mystery import GIVEN, KINDS, NOBODY, SYSTEM, VICTIM

__all__ = ["ASK", "CHAT_TEMPLATE", "HM", "THINK", "THOUGHT", "UNKNOWN", "build_tokenizer", "words"]

THINK, THOUGHT = "<think>", "</think>"
ASK = hermes.opening("ask", "about")
HM, UNKNOWN = "hm", "unknown"
CHAT_TEMPLATE = hermes.CHAT_TEMPLATE.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")


def words() -> list[str]:
    """Every word that a case or the format can hold."""
    text = f"{SYSTEM} {NOBODY} {VICTIM} in at and tools ask {HM} {UNKNOWN} {' '.join(GIVEN.values())} {' '.join(KINDS)}"
    return list(dict.fromkeys([*text.split(), *(word for listed in KINDS.values() for word in listed)]))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, with its chat template: about 370 tokens."""
    return hermes.build_tokenizer(words(), [THINK, THOUGHT, ASK, hermes.CLOSE_TEXT], template=CHAT_TEMPLATE)
