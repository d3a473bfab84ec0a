"""Make the small model: a Qwen3-shaped one that has read the conversations of mostly careless servants.

    python examples/retail/make_model.py OUT --device cuda

Conversations, weights and their order come from the seed. The last line of output is JSON: what the model does with
held-out cases, in process.
"""

from __future__ import annotations

import functools
import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.making import LESSONS, Recipe, main
from common.pretrain import Row, of_messages
from common.sampling import keeping, measure
from transformers import PreTrainedTokenizerFast

from retail.desk import MAX_CALLS, Case, Desk, cases
from retail.domains import number_of, tools_of
from retail.lessons import lessons
from retail.players import expert_reward, transcripts
from retail.vocabulary import desk_tokenizer, words

tokenizer_here = functools.cache(desk_tokenizer)


def make_rows(seed: int, count: int) -> list[Row]:
    """Conversations as rows, and a share of lessons."""
    some = count // LESSONS
    served = [of_messages(tokenizer_here(), messages, tools) for messages, tools in transcripts(seed, count - some)]
    return [*served, *make_lessons(seed, some)]


def make_lessons(seed: int, count: int) -> list[Row]:
    """Lessons as rows."""
    return lessons(tokenizer_here(), seed, count)


class Served:
    """A conversation of a model with a customer, in process."""

    def __init__(self, case: Case) -> None:
        self.desk = Desk(case)
        self.tools = tools_of(case.domain)
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": case.domain.policy},
            {"role": "user", "content": self.desk.opening()},
        ]
        self.done = False
        self.reward = 0.0
        self.calls = 0
        self.finds: list[bool] = []
        """Of looks at the customer's records where the number that he or she said is wrong and was not taken: was it
        the right one?"""

    def act(self, message: dict[str, Any]) -> None:
        """Run the tools of a reply, or tell the customer what it says."""
        self.messages.append(message)
        self.calls += 1
        for call in message.get("tool_calls", []):
            name, number = call["function"]["name"], number_of(json.loads(call["function"]["arguments"]))
            self.look(name, number)
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": self.desk.call(name, number)})
        if not message.get("tool_calls"):
            self.messages.append({"role": "user", "content": self.desk.say(message["content"])})
        self.done = self.desk.left or self.calls >= MAX_CALLS
        self.reward = self.desk.reward

    def look(self, tool: str, number: object) -> None:
        """Note whether a record was found by its thing."""
        case = self.desk.case
        wanted = case.record(case.wishes[self.desk.wish]).id
        own = {r.id for r in case.records if r.code == case.code} - {case.told}
        if self.desk.verified and tool == case.domain.record and number in own and wanted in own:
            self.finds.append(number == wanted)


def figures_of(model: Any, tokenizer: PreTrainedTokenizerFast, seed: int, count: int) -> dict[str, float]:
    """What the model does with held-out cases, in process."""
    held_out = list(islice(cases("eval", seed), count))
    begun: list[Served] = []
    start = keeping(lambda i: Served(held_out[i]), begun)
    figures = measure(model, tokenizer, start, items=count, k_items=min(50, count), tokens=16)
    finds = [found for served in begun for found in served.finds]
    return {**figures, "found": sum(finds) / max(1, len(finds)), "expert": expert_reward(held_out)}


RECIPE = Recipe(
    desk_tokenizer, words, make_rows, figures_of, rows=80_000, steps=4000, batch=256, seconds=110.0, measure=500, finding=True,
    lessons=make_lessons, lesson_rows=20_000, lesson_steps=600, lesson_seconds=30.0,
)  # fmt: skip

if __name__ == "__main__":
    main(__doc__, RECIPE)
