"""The small model's tokenizer for games of 2048. A move is two tokens: a word and its end."""

from __future__ import annotations

from common.hermes import build_tokenizer
from transformers import PreTrainedTokenizerFast

from twenty48.board import DIRECTIONS, RULES

__all__ = ["WORDS", "make_tokenizer"]

WORDS = tuple(
    dict.fromkeys(
        [*RULES.replace("{target}", "").replace(".", " ").split(), *DIRECTIONS, "0", *(str(2**n) for n in range(1, 12))]
    )
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, with its chat template: about 330 tokens."""
    return build_tokenizer(WORDS, ())
