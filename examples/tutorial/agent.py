"""The tutorial's agent: it asks a model to sort numbers, checks the answer, and posts a reward.

python agent.py        plays until you stop it
python agent.py 16     plays 16 runs
"""

from __future__ import annotations

import json
import os
import random
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice

import httpx
import openai

PROXY = os.environ.get("SLIPSTREAM_URL", "http://127.0.0.1:8100")
MODEL = os.environ.get("MODEL", "Qwen3-0.6B")
TASKS = 200
RUNS_AT_ONCE = 8


# --8<-- [start:agent]
def numbers_of(task: int) -> list[int]:
    """The same task always has the same numbers, so that its runs can be compared."""
    return random.Random(task).sample(range(100), 8)


def score(answer: str, numbers: list[int]) -> float:
    """The share of places that hold the right number; 0 for an answer that is no list."""
    try:
        given = json.loads(answer.strip())
    except ValueError:
        return 0.0
    if not isinstance(given, list):
        return 0.0
    return sum(a == b for a, b in zip(given, sorted(numbers), strict=False)) / len(numbers)


def play(task: int) -> float:
    """One run: one call to the model, and one reward."""
    numbers, episode = numbers_of(task), uuid.uuid4().hex
    client = openai.OpenAI(base_url=f"{PROXY}/v1", api_key="none")
    reply = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": f"Sort {numbers}. Answer with the JSON list alone. /no_think"}],
        max_tokens=64,
        extra_headers={"x-slipstream-episode": episode, "x-slipstream-task": f"sort-{task}"},
    )
    answer = (reply.choices[0].message.content or "").rpartition("</think>")[2]
    reward = score(answer, numbers)
    httpx.post(f"{PROXY}/slipstream/v1/episodes/{episode}/rewards", json={"value": reward}).raise_for_status()
    return reward


# --8<-- [end:agent]
def main(runs: int | None) -> None:
    """Each task is played eight times in a row, because runs of one task are compared with each other."""
    tasks = islice((n // RUNS_AT_ONCE % TASKS for n in count()), runs)
    recent: list[float] = []
    with ThreadPoolExecutor(RUNS_AT_ONCE) as pool:
        while batch := list(islice(tasks, RUNS_AT_ONCE)):
            recent = [*recent, *pool.map(play, batch)][-200:]
            print(f"mean reward of the last {len(recent)} runs: {sum(recent) / len(recent):.2f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else None)
