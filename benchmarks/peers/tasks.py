"""Verifiable tasks of reasoning-gym: python benchmarks/peers/tasks.py OUT.json   (pip install reasoning-gym)

``{name: [{"q": question, "a": answer}]}``. The first 64 of each are never trained on.
"""

from __future__ import annotations

import json
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
SYSTEM = "Answer with the result only, no explanation."
MAX_TOKENS = 32


def reward(reply: str, answer: str) -> float:
    """1 where the reply is the answer, 0.3 where it contains it, else 0."""
    said, wanted = reply.strip().lower().rstrip("."), answer.strip().lower()
    return 1.0 if said == wanted else 0.3 if wanted in said else 0.0


def messages(question: str) -> list[dict[str, str]]:
    """The prompt."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def main() -> None:
    """Command line."""
    import reasoning_gym

    found = {}
    for name, spec in SPECS.items():
        made = reasoning_gym.create_dataset(name, size=SIZE, seed=SEED, **spec)
        found[name] = [{"q": item["question"], "a": str(item["answer"])} for item in made]
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
