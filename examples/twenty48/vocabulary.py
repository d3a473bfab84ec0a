"""How a game of 2048 reads as a conversation, and the small model's tokenizer for it. A move is two tokens: a word, its end."""

from __future__ import annotations

from typing import Any

from common.hermes import build_tokenizer
from transformers import PreTrainedTokenizerFast

from twenty48.board import DIRECTIONS, RULES, Board, Item, show

__all__ = ["WORDS", "first_message", "make_tokenizer", "next_message"]

LARGEST = 2048
WORDS = tuple(
    dict.fromkeys(
        [*RULES.replace("{target}", "").replace(".", " ").split(), *DIRECTIONS, "0", *(str(2**n) for n in range(1, 12))]
    )
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, with its chat template: about 330 tokens."""
    return build_tokenizer(WORDS, ())


def first_message(item: Item, board: Board) -> dict[str, Any]:
    """The user's first message: the rules and the board."""
    return {"role": "user", "content": f"{item.question}\n{show(board)}"}


def next_message(board: Board) -> dict[str, Any]:
    """The user's message after a move: the board."""
    return {"role": "user", "content": show(board)}
