"""How a guessing game reads as a conversation, and the small model's tokenizer for it.

A guess is four tokens: the tool call's beginning, the word or number, its close, the end of the turn.
"""

from __future__ import annotations

import re
from typing import Any

from common.hermes import CLOSE_NUMBER, CLOSE_TEXT, END, build_tokenizer, opening, tool_call
from transformers import PreTrainedTokenizerFast

from words.game import NUMBERS, OVER, RIGHT, RULES, UNKNOWN, WORDS

__all__ = ["ASK", "DONE", "VOCABULARY", "close_of", "guess_message", "make_tokenizer", "opening_of", "tools_of"]

DONE = "done"
"""What a player says when the game has ended."""
ASK = "What fits?"
"""What a lesson asks."""
SPLIT = r" ?[a-z](?:[=~][1-4]|-)| ?[A-Za-z]+| ?[0-9]+|\s|."
"""A letter's mark ("s=1", "s~1", "s-") is a word of its own."""


def vocabulary() -> tuple[str, ...]:
    """Every word that a game or the format can hold."""
    text = " ".join([*RULES.values(), RIGHT, UNKNOWN, OVER, DONE, ASK, "higher lower tools guess"])
    stands = sorted({(letter, place) for word in WORDS for place, letter in enumerate(word, 1)})
    marks = [f"{letter}{sign}{place}" for letter, place in stands for sign in "=~"]
    marks += [f"{letter}-" for letter in sorted({letter for letter, _ in stands})]
    return tuple(dict.fromkeys([*re.findall(r"[A-Za-z]{2,}", text), "s", *WORDS, *NUMBERS, *marks]))


VOCABULARY = vocabulary()


def opening_of(kind: str) -> str:
    """The piece that begins a guess."""
    return opening("guess", kind, text=kind == "word")


def close_of(kind: str) -> str:
    """The piece that ends a guess, and the end of the turn."""
    return (CLOSE_TEXT if kind == "word" else CLOSE_NUMBER) + END


def make_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, with its chat template: about 800 tokens."""
    pieces = (opening_of("word"), opening_of("number"), CLOSE_TEXT, CLOSE_NUMBER)
    return build_tokenizer(VOCABULARY, pieces, split=SPLIT)


def guess_message(kind: str, guess: str) -> dict[str, Any]:
    """The assistant's message with a guess, as the API carries it."""
    return tool_call("guess", {kind: guess if kind == "word" else int(guess)})


def tools_of(kind: str) -> list[dict[str, Any]]:
    """The tool of this kind of game, as far as the chat template shows it: its name."""
    return [{"type": "function", "function": {"name": "guess"}}]
