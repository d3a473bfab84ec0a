"""What a user said about a reply, put into the prompt that the reply was given to.

The text stands right before the reply: at the end of the user's turn that the prompt ends with, else as a turn of its
own, as the model's chat template writes one. With a turn of its own behind the question a small model answers the text
and no longer the question. The prompt's other ids stay what they were. The text's words are tokenised as plain text: an
end of turn that a user wrote is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from slipstream_trainer.batch.rows import Ints, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_PLACE = "no_place_for_words"
"""Why a reply is not trained on: the chat template has no user's turn that fits before it."""
HINT_MARK = "HINT2MARK"


class Hints:
    """Words of users in prompts of one tokenizer's chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.tails = self._tails()
        """How prompts end: with what the assistant's turn begins with."""
        self.turn = self._turn()

    def _tried(self, *said: str, ask: bool = False, **options: Any) -> str | None:
        """What the template writes. None: it says no, each in its own way."""
        roles = ("user", "assistant")
        messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
        options |= {"tokenize": False, "add_generation_prompt": ask}
        try:
            return str(self.tokenizer.apply_chat_template(messages, **options))
        except Exception:
            return None

    def _ids(self, text: str, **options: Any) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, **options)["input_ids"])

    def _tails(self) -> list[list[int]]:
        """The longest first. Some templates write an empty thought where thinking is off."""
        found: list[list[int]] = []
        for options in ({}, {"enable_thinking": False}, {"enable_thinking": True}):
            before, after = self._tried("a", **options), self._tried("a", ask=True, **options)
            if before is None or after is None:
                continue
            if after.startswith(before) and (tail := self._ids(after[len(before) :])) not in found:
                found.append(tail)
        return sorted(found, key=len, reverse=True)

    def _turn(self) -> tuple[list[int], list[int]] | None:
        """The ids around a user's turn after another turn. None: the template has none."""
        before, after = self._tried("a", "b"), self._tried("a", "b", HINT_MARK)
        if before is None or after is None:
            return None
        opening, found, closing = after.removeprefix(before).partition(HINT_MARK)
        return (self._ids(opening), self._ids(closing)) if found and after.startswith(before) else None

    def place(self, prompt_P: Ints, words: str) -> Ints | None:
        """The prompt with the words before the reply. None: they fit nowhere."""
        ids: list[int] = prompt_P.tolist()
        tail = next((t for t in self.tails if not t or ids[-len(t) :] == t), None)
        if tail is None or self.turn is None:
            return None
        (opening, closing), at = self.turn, len(ids) - len(tail)
        end = at - len(closing)
        speaks = bool(closing) and ids[end:at] == closing and _last(ids[:end], opening) > _last(ids[:end], closing)
        text = ("\n\n" if speaks else "") + words
        said = self._ids(text, split_special_tokens=True)
        whole = [*ids[:end], *said, *ids[end:]] if speaks else [*ids[:at], *opening, *said, *closing, *tail]
        return np.array(whole, np.int32)

    def put(self, samples: Sequence[Sample], budget: int) -> None:
        """Give each sample that has words its prompt with them. Where that cannot be, the sample says why."""
        for s in samples:
            if s.hint is None or not s.trainable:
                continue
            s.hinted_P = self.place(s.prompt_P, s.hint)
            if s.hinted_P is None:
                s.trainable, s.reason = False, NO_PLACE
            elif len(s.hinted_P) + len(s.completion_C) - 1 > budget:
                s.trainable, s.reason = False, "too_long"


def _last(ids: Sequence[int], part: Sequence[int]) -> int:
    """Where ``part`` begins last; -1: nowhere."""
    return next((n for n in reversed(range(len(ids))) if ids[n : n + len(part)] == part), -1)
