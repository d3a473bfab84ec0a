"""Make the small model: a Qwen3-shaped one that has read the cases of mostly careless detectives, and some reading exercises.

    python examples/clue/make_model.py examples/clue/model --device cuda

Cases, weights and their order come from the seed. The last line of output is JSON: what the model scores on held-out cases.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.hermes import END, encode, render
from common.making import Recipe, main
from common.pretrain import Row, of_messages
from common.sampling import measure
from transformers import PreTrainedTokenizerFast

from clue.detectives import TOOLS, Reply, draw_detective, exercises, expert_reward, play, some_cases
from clue.mystery import SYSTEM, Case, cases, score
from clue.vocabulary import THOUGHT, build_tokenizer, words

tokenizer_once = cache(build_tokenizer)


def row(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, Any]], reply: Reply) -> Row:
    """One call: what the model is asked with, and what the detective said, his reasoning too."""
    prompt = render(tokenizer, messages, TOOLS, ask=True)
    said = [encode(tokenizer, text) for text in [*reply.tokens, END]]
    if any(len(ids) != 1 for ids in said):
        raise ValueError(f"not one token each: {reply.tokens}")
    soft = [
        (len(prompt) + place, {encode(tokenizer, text)[0]: 1 / len(could) for text in could})
        for place, could in reply.could.items()
    ]
    return Row(prompt + [ids[0] for ids in said], [False] * len(prompt) + [True] * len(said), soft)


def rows(tokenizer: PreTrainedTokenizerFast, seed: int, count: int) -> Iterator[Row]:
    """Calls of the detectives, three an episode, and a page of reading exercises for each episode."""
    rng = random.Random(seed)
    made = 0
    for case in some_cases(rng, count):
        page = of_messages(tokenizer, exercises(case, rng), TOOLS)
        calls = [row(tokenizer, *call) for call in play(case, draw_detective(rng), rng)]
        for one in (page, *calls):
            if made == count:
                return
            made += 1
            yield one


def some_rows(seed: int, count: int) -> list[Row]:
    """For one process."""
    return list(rows(tokenizer_once(), seed, count))


class Played:
    """A case as the agent works on it, without a server."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": case.opening},
        ]
        self.tools = TOOLS
        self.done, self.heard, self.reward = False, False, 0.0
        self.answers: list[str] = []

    def act(self, message: dict[str, Any]) -> None:
        """Hear the witness once, ask the second question, or end."""
        self.messages.append(message)
        calls = message.get("tool_calls") or []
        if calls and not self.heard and not self.answers:
            about = json.loads(calls[0]["function"]["arguments"]).get("about", "")
            self.messages.append({"role": "tool", "content": self.case.testimony(str(about))})
            self.heard = True
            return
        said = str(message.get("content") or "").split(THOUGHT)[-1].split()
        first = not self.answers
        self.answers += ([*said, "", ""])[: 1 if first else 2]
        self.reward = score(self.case, self.answers)
        self.done = bool(calls) or not first
        if not self.done:
            self.messages.append({"role": "user", "content": self.case.closing})


def figures_of(model: Any, tokenizer: PreTrainedTokenizerFast, seed: int, count: int) -> dict[str, float]:
    """What the model does with held-out cases, in process."""
    held_out = list(itertools.islice(cases("eval"), count))
    figures = measure(model, tokenizer, lambda i, _: Played(held_out[i]), items=count, k_items=min(100, count))
    return {**figures, "expert": expert_reward(held_out)}


RECIPE = Recipe(
    tokenizer_once, words, some_rows, figures_of, rows=240_000, steps=20_000, seconds=110.0, layers=4, intermediate=384
)

if __name__ == "__main__":
    main(__doc__, RECIPE)
