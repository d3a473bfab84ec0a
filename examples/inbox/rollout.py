"""Measure a model in process, without a server: what it starts with, and what it could learn.

    python examples/inbox/rollout.py examples/inbox/model --tasks 200 --k 64 --k-tasks 50

Prints one JSON object: success at temperature 1 on held-out tasks, pass@k, the share of prompts that continue the
conversation token by token, sampled tokens a call, and the ceiling of a scripted searcher.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from common.hermes import END, parse, render
from common.sampling import sample
from transformers import AutoModelForCausalLM, AutoTokenizer

from inbox.inbox import SYSTEM, TOOLS, Mailbox, Task, good_searcher, make_tasks, reward

MAX_CALLS = 4
MAX_TOKENS = 24


@dataclass
class Episode:
    """One episode in flight. `ids` are the tokens so far, `sampled` marks with 1 those that the model sampled."""

    task: Task
    messages: list[dict[str, Any]]
    ids: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    calls: int = 0
    done: bool = False
    reward: float = 0.0
    exact: int = 0  # prompts that start with the previous prompt and its completion
    continued: int = 0  # prompts after the first


def start(task: Task) -> Episode:
    """An episode that has not called the model yet."""
    return Episode(task, [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.question}])


def act(episode: Episode, text: str) -> None:
    """Carry out a reply: run its tools, end the episode on an answer, on plain text or after the last call."""
    episode.calls += 1
    message = parse(text)
    if "tool_calls" not in message:
        episode.done = True
        return
    episode.messages.append(message)
    box = Mailbox(episode.task)
    for call in message["tool_calls"]:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        if name == "answer":
            values = json.loads(arguments)
            episode.reward = reward(episode.task, str(values.get("text")) if isinstance(values, dict) else None)
            episode.done = True
            break
        episode.messages.append({"role": "tool", "tool_call_id": call["id"], "content": box.call(name, arguments)})
    box.close()
    episode.done = episode.done or episode.calls >= MAX_CALLS


@torch.no_grad()
def rollout(model: Any, tokenizer: Any, tasks: list[Task], temperature: float = 1.0) -> list[Episode]:
    """Play all tasks at once, one episode each. torch's global generator decides what is sampled."""
    end = tokenizer.convert_tokens_to_ids(END)
    episodes = [start(task) for task in tasks]
    while active := [e for e in episodes if not e.done]:
        for e in active:
            ids = render(tokenizer, e.messages, TOOLS, ask=True)
            if e.ids:
                e.continued += 1
                e.exact += ids[: len(e.ids)] == e.ids
            e.sampled += [0] * (len(ids) - len(e.ids))
            e.ids = ids
        replies = sample(model, [e.ids for e in active], end, tokens=MAX_TOKENS, temperature=temperature)
        for e, new in zip(active, replies, strict=True):
            e.ids = e.ids + new
            e.sampled += [1] * len(new)
            act(e, tokenizer.decode(new).removesuffix(END))
    return episodes


def load(path: str) -> tuple[Any, Any]:
    """Model (float32) and tokenizer of a folder."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(path)


def measure(path: str, *, tasks: int, k: int, k_tasks: int, seed: int = 0) -> dict[str, float]:
    """The figures that the module's docstring names, on held-out tasks."""
    torch.manual_seed(seed)
    model, tokenizer = load(path)
    held_out = make_tasks("eval", tasks, seed)
    episodes = rollout(model, tokenizer, held_out)
    passed = 0
    for task in held_out[:k_tasks]:
        passed += any(e.reward for e in rollout(model, tokenizer, [task] * k))
    continued = sum(e.continued for e in episodes)
    return {
        "success": sum(e.reward for e in episodes) / tasks,
        f"pass@{k}": passed / max(1, k_tasks),
        "exact_continuations": sum(e.exact for e in episodes) / max(1, continued),
        "tokens_per_call": sum(sum(e.sampled) for e in episodes) / sum(e.calls for e in episodes),
        "tokens_per_episode": sum(len(e.ids) for e in episodes) / tasks,
        "scripted_ceiling": sum(reward(t, good_searcher(t)) for t in held_out) / tasks,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--k", type=int, default=64)
    parser.add_argument("--k-tasks", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    figures = measure(args.model, tasks=args.tasks, k=args.k, k_tasks=args.k_tasks, seed=args.seed)
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
