"""Lessons that the small model reads before it reads conversations: which number belongs to which thing.

A careless servant's number is as often the customer's as the lookup's. From that alone a small model learns to copy some number
that it has seen, and never to find the one that stands beside a thing. A lesson asks for nothing else, again and again.
It says nothing about how a customer is served.
"""

from __future__ import annotations

import random
from typing import Any

from common.hermes import tool_call
from common.pretrain import Row, again, of_messages
from transformers import PreTrainedTokenizerFast

from retail.domains import DOMAINS, NAMES, Domain, arguments_of, lookup_answer

__all__ = ["lessons"]

REPEATS = 20
"""Pairs of a list that have stood in it before."""
QUESTIONS = 6
NUMBERS = range(10, 100)


def lessons(tokenizer: PreTrainedTokenizerFast, seed: int, count: int) -> list[Row]:
    """`count` lessons as rows: half of them lists, half of them questions."""
    rng = random.Random(seed)
    makers = (repeated, asked)
    return [makers[i % 2](tokenizer, rng) for i in range(count)]


def drawn(rng: random.Random, least: int, most: int) -> tuple[Domain, dict[str, int]]:
    """A company, and some of its things with numbers."""
    domain = rng.choice(list(DOMAINS.values()))
    things = rng.sample(domain.things, rng.randint(least, most))
    return domain, dict(zip(things, rng.sample(NUMBERS, len(things)), strict=True))


def lookup(rng: random.Random, pairs: list[tuple[str, int]]) -> dict[str, Any]:
    """What the customer lookup answers."""
    return {"role": "tool", "tool_call_id": "call", "content": lookup_answer(rng.choice(NAMES), pairs)}


def repeated(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """A lookup in which each pair comes again and again. Each number but the first of a thing is the model's to say."""
    _, numbers = drawn(rng, 3, 6)
    pairs = list(numbers.items())
    row = of_messages(tokenizer, [lookup(rng, pairs + rng.choices(pairs, k=REPEATS))])
    said = {tokenizer.convert_tokens_to_ids(f"Ġ{number}") for number in numbers.values()}
    return Row(row.ids, again(row.ids, said))


def asked(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """A lookup, and one wish after another: each is answered by a look at the record. The first wish may come before it."""
    domain, numbers = drawn(rng, 2, 5)
    messages = [lookup(rng, list(numbers.items()))]
    for turn in range(QUESTIONS):
        thing, action = rng.choice(list(numbers)), rng.choice(list(domain.actions))
        said = domain.wish(action, thing)
        call = tool_call(domain.record, arguments_of(domain, domain.record, numbers[thing], thing))
        if turn == 0 and rng.random() < 0.5:
            told = rng.choice(list(numbers.values()))
            messages = [{"role": "user", "content": f"{said}, {domain.record} {told}"}, *messages, call]
        else:
            messages += [{"role": "user", "content": said}, call]
    return of_messages(tokenizer, messages)
