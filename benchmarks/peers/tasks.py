"""Verifiable tasks of reasoning-gym: python -m benchmarks.peers.tasks OUT.json   (pip install reasoning-gym)

``{name: [{"q": question, "a": answer}]}``. The first 64 of each are never trained on. Where an item has a ``"check"``
(``gcd_checked``), that is what a run is told after a reply which is not the answer, and the reply to it is what counts.
SmolLM2-135M-Instruct begins ``gcd_checked`` at a mean reward of 0.21, and 0.13 without its second turn (48 runs of 12
tasks); in 9 of 12 groups of four runs the rewards differed.
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
    """The check: the right number beside a wrong one, in any order. A question has always the same check."""
    order = random.Random(question)
    wrong = order.choice([n for n in range(1, 10) if n != answer])
    first, second = order.sample([answer, wrong], 2)
    return f"Wrong. It is {first} or {second}. Answer with this number only."


def main() -> None:
    """Command line."""
    import reasoning_gym

    found: dict[str, Any] = {}
    for name, spec in SPECS.items():
        made = reasoning_gym.create_dataset(name, size=SIZE, seed=SEED, **spec)
        found[name] = [{"q": item["question"], "a": str(item["answer"])} for item in made]
    found["gcd_checked"] = [x | {"check": either(x["q"], int(x["a"]))} for x in found["gcd"]]
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
