"""Make the small model: a Qwen3-shaped one that has read lessons in reading notes, and the cases of mostly careless detectives.

    python examples/clue/make_model.py examples/clue/model --device cuda

Cases, weights and their order come from the seed. The last line of output is JSON: what the model scores on held-out cases.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.hermes import END, encode, render
from common.making import LESSONS, Recipe, main
from common.pretrain import Row
from common.sampling import keeping, measure
from transformers import PreTrainedTokenizerFast

from clue.detectives import EXPERT, TOOLS, Episode, Reply, expert_reward, transcripts
from clue.lessons import lessons
from clue.mystery import PEOPLE, SYSTEM, Case, cases, score
from clue.vocabulary import THINK, THOUGHT, UNKNOWN, build_tokenizer, words

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


def make_rows(seed: int, count: int) -> list[Row]:
    """Calls of the detectives as rows, three an episode, and a share of lessons."""
    some = count // LESSONS
    tokenizer = tokenizer_once()
    calls = itertools.islice(transcripts(seed, count), count - some)
    return [*(row(tokenizer, *call) for call in calls), *make_lessons(seed, some)]


def make_lessons(seed: int, count: int) -> list[Row]:
    """Lessons as rows."""
    return lessons(tokenizer_once(), seed, count)


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
        self.expert = Episode(case, EXPERT, random.Random(0))
        self.finds: list[tuple[str, bool]] = []
        """Of the words that were thought where all before them follow from the notes: the word that follows, and whether
        it was found."""

    def act(self, message: dict[str, Any]) -> None:
        """Hear the witness once, ask the second question, or end."""
        self.messages.append(message)
        thought, calls = str(message.get("content") or ""), message.get("tool_calls") or []
        if calls and not self.heard and not self.answers:
            self.look(thought)
            told = self.case.testimony(str(json.loads(calls[0]["function"]["arguments"]).get("about", "")))
            self.messages.append({"role": "tool", "content": told})
            self.expert.hear(told)
            self.heard = True
            return
        first = not self.answers
        if not calls:
            self.look(thought, *(self.case.questions[:1] if first else self.case.questions[1:]))
        said = thought.rsplit(THOUGHT, maxsplit=1)[-1].split()
        self.answers += ([*said, "", ""])[: 1 if first else 2]
        self.reward = score(self.case, self.answers)
        self.done = bool(calls) or not first
        if not self.done:
            self.messages.append({"role": "user", "content": self.case.closing})

    def look(self, thought: str, *questions: str) -> None:
        """Note which words of a thought were found. The first is the one that was told, and needs no finding."""
        words = thought.removeprefix(THINK).split(THOUGHT)[0].split()
        for place, (right, word) in enumerate(zip(self.expert.trace(*questions), words, strict=False)):
            if place:
                self.finds.append((right, word == right))
            if word != right:
                break


def figures_of(model: Any, tokenizer: PreTrainedTokenizerFast, seed: int, count: int) -> dict[str, float]:
    """What the model does with held-out cases, in process."""
    held_out = list(itertools.islice(cases("eval"), count))
    begun: list[Played] = []
    start = keeping(lambda i: Played(held_out[i]), begun)
    figures = measure(model, tokenizer, start, items=count, k_items=min(100, count))
    finds = [find for played in begun for find in played.finds]
    sorts = {
        "found": [ok for right, ok in finds if right != UNKNOWN],
        "found_person": [ok for right, ok in finds if right in PEOPLE],
        "found_unknown": [ok for right, ok in finds if right == UNKNOWN],
    }
    shares = {name: sum(some) / max(1, len(some)) for name, some in sorts.items()}
    return {**figures, **shares, "expert": expert_reward(held_out)}


RECIPE = Recipe(
    tokenizer_once, words, make_rows, figures_of, rows=240_000, steps=20_000, seconds=100.0, layers=4, intermediate=384,
    finding=True, reading=True, lessons=make_lessons, lesson_rows=20_000, lesson_steps=600, lesson_seconds=20.0,
)  # fmt: skip

if __name__ == "__main__":
    main(__doc__, RECIPE)
