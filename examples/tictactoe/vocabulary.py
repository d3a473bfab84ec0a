"""The small model's tokenizer: word level over what a game can say. A move is four tokens.

They are the tool call's beginning, the square, its close, the end of the turn.
"""

from __future__ import annotations

from typing import Any

from common import hermes
from transformers import PreTrainedTokenizerFast

from tictactoe.tictactoe import DRAWN, INSTRUCTIONS, LOST, TAKEN, WON

TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "play"}}]
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


class Spelling:
    """Token ids of a game's texts, as the chat template writes them."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.squares = [tokenizer.convert_tokens_to_ids(str(i + 1)) for i in range(9)]
        self.known: dict[str, list[int]] = {}

    def prompt(self, question: str) -> list[int]:
        """Everything up to the first move."""
        if question not in self.known:
            asked = [{"role": "user", "content": question}]
            self.known[question] = hermes.render(self.tokenizer, asked, TOOLS, ask=True)
        return self.known[question]

    def answer(self, text: str) -> list[int]:
        """What stands between one move's end token and the next move."""
        return self.encode(hermes.tool_turn(text))

    def move(self, square: int) -> list[int]:
        """A move (square 1 to 9) with its end token."""
        messages = [{"role": "user", "content": ""}, move_message(square)]
        text = str(self.tokenizer.apply_chat_template(messages, tokenize=False))
        return self.encode(text[text.index(PLAY) :])

    def encode(self, text: str) -> list[int]:
        """Ids of a text, remembered."""
        if text not in self.known:
            self.known[text] = hermes.encode(self.tokenizer, text)
        return self.known[text]
