"""The small model's tokenizer: word level over what a game can say. A move is four tokens.

They are the tool call's beginning, the square, its close, the end of the turn.
"""

from __future__ import annotations

from typing import Any

from common import hermes
from transformers import PreTrainedTokenizerFast

from tictactoe.tictactoe import DRAWN, INSTRUCTIONS, LOST, TAKEN, WON

PLAY, CLOSE = hermes.opening("play", "square", text=False), hermes.CLOSE_NUMBER
SPLIT = r" ?[A-Za-z]+| ?[0-9]|\s|."


def words() -> list[str]:
    """Every word that a game or the format can hold."""
    text = f"{INSTRUCTIONS} {WON} {DRAWN} {LOST} {TAKEN} tools play".replace(".", " ").replace(",", " ")
    return list(dict.fromkeys([*text.split(), *map(str, range(1, 10))]))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, with its chat template: about 340 tokens."""
    return hermes.build_tokenizer(words(), (PLAY, CLOSE), split=SPLIT)


def move_message(square: int, call_id: str = "call") -> dict[str, Any]:
    """An assistant message that plays a square (1 to 9), as the API carries it."""
    return hermes.tool_call("play", {"square": square}, call_id)
