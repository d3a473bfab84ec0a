"""Lessons that the small model reads before it reads research: which number belongs to which thing and name.

The clumsy have any of the mails read, and note little. From that alone a small model learns to copy some number that it has
seen, and never to find the one that stands beside a thing and a name. A lesson asks for nothing else, again and again.
It says nothing about how a question is answered.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

from common.hermes import tool_call
from common.pretrain import Row, again, of_messages
from transformers import PreTrainedTokenizerFast

from mail.mailbox import ASKED, LISTED, NAMES, NOTES, THINGS, listing

__all__ = ["lessons"]

REPEATS = 20
"""Subjects of a list that have stood in it before."""
ASKS = 6
POINTED = 0.3
"""Of what is asked for, those that a mail points to."""
Pair = tuple[str, str]


def lessons(tokenizer: PreTrainedTokenizerFast, seed: int, count: int) -> list[Row]:
    """`count` lessons as rows: half of them lists, half of them questions."""
    rng = random.Random(seed)
    makers = (repeated, asked)
    return [makers[i % 2](tokenizer, rng) for i in range(count)]


def drawn(rng: random.Random, most: int) -> list[Pair]:
    """Some subjects. They share things, or names, or both, so that one word alone does not tell them apart."""
    things, names = rng.choice(((1, most), (most, 1), (2, 2), (3, 2), (2, 3), (most, most)))
    pairs = list(itertools.product(rng.sample(THINGS, things), rng.sample(NAMES, names)))
    return rng.sample(pairs, min(len(pairs), rng.randint(2, most)))


def listed(content: str) -> dict[str, Any]:
    """What a tool answers."""
    return {"role": "tool", "tool_call_id": "call", "content": content}


def repeated(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """A list of subjects with any numbers, again and again. Each number but the first of a subject is the model's to say."""
    pairs = drawn(rng, 6)
    numbers = dict(zip(pairs, rng.sample(range(1, 100), len(pairs)), strict=True))
    told = pairs + rng.choices(pairs, k=REPEATS)
    row = of_messages(tokenizer, [listed(", ".join(f"{thing} {name} {numbers[thing, name]}" for thing, name in told))])
    said = {tokenizer.convert_tokens_to_ids(f"Ġ{number}") for number in numbers.values()}
    return Row(row.ids, again(row.ids, said))


def asked(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """A search's hits, and one question after another: each is answered by reading its mail, or by a note of it."""
    pairs = drawn(rng, LISTED)
    hits = listed(f"{rng.randint(len(pairs), 60)} mails: {listing(' '.join(pair) for pair in pairs)}")
    messages = [hits]
    for turn in range(ASKS):
        hit, (thing, name) = rng.choice(list(enumerate(pairs, 1)))
        wanted = {"role": "user", "content": rng.choice(ASKED).format(thing=thing, name=name)}
        pointed = rng.random() < POINTED
        if pointed:
            wanted = listed(f"same as {thing} {name}")
        messages = [wanted, *messages] if turn == 0 and rng.random() < 0.5 else [*messages, wanted]
        # What was pointed to is never noted as a hit here: in research it is noted as it was said, where no hit is of it.
        if pointed or rng.random() < 0.5:
            messages.append(tool_call("read", {"subject": f"{thing} {name}", "hit": hit}))
        else:
            noted = {"role": "assistant", "content": f"hit {thing} {name} {hit}"}
            messages += [{"role": "user", "content": NOTES}, noted]
    return of_messages(tokenizer, messages)
