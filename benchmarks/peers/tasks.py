"""Verifiable tasks of reasoning-gym: python benchmarks/peers/tasks.py OUT.json   (pip install reasoning-gym)

``{name: [{"q": question, "a": answer}]}``. The first 64 of each are never trained on. Where an item has a ``"check"``, that
is what a run is told after a reply which is not the answer, and the reply to it is what counts.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

SPECS: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "products": {"min_digits": 1, "max_digits": 1},
    "gcd": {"max_value": 30},
}
SIZE, SEED = 700, 11
HELD_OUT = 64
TURNS = 2
"""Replies of a run, at most."""
SYSTEM = "Answer with the result only, no explanation."
MAX_TOKENS = 32


def reward(reply: str, answer: str) -> float:
    """1 where the reply is the answer, 0.3 where it contains it, else 0."""
    said, wanted = reply.strip().lower().rstrip("."), answer.strip().lower()
    return 1.0 if said == wanted else 0.3 if wanted in said else 0.0


def messages(question: str) -> list[dict[str, str]]:
    """The prompt."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def check(item: dict[str, str], reply: str) -> str | None:
    """What the check says of a reply: nothing where it is right, or the task has no check."""
    return None if reward(reply, item["a"]) == 1.0 else item.get("check")


def either(question: str, answer: int) -> str:
    """The check of a product: the right number beside a wrong one, in any order. A question has always the same check."""
    order = random.Random(question)
    wrong = answer + order.choice([n for n in (-10, -5, -2, -1, 1, 2, 5, 10) if answer + n >= 0])
    first, second = order.sample([answer, wrong], 2)
    return f"Wrong. It is {first} or {second}. Answer with this number only."


def main() -> None:
    """Command line."""
    import reasoning_gym

    found: dict[str, Any] = {}
    for name, spec in SPECS.items():
        made = reasoning_gym.create_dataset(name, size=SIZE, seed=SEED, **spec)
        found[name] = [{"q": item["question"], "a": str(item["answer"])} for item in made]
    found["products_checked"] = [x | {"check": either(x["q"], int(x["a"]))} for x in found["products"]]
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
