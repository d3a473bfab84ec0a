"""Play a task in process, without a server: what a model starts with, and what it could learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch
from transformers import PreTrainedTokenizerFast

from common.hermes import END, parse, render

__all__ = ["Conversation", "keeping", "measure", "play_out"]


class Conversation(Protocol):
    """One episode as it is played here. `messages` is what the agent would send next, whole."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    done: bool
    reward: float

    def act(self, message: dict[str, Any]) -> None:
        """Take the assistant's message (append it), run its tools, append what they say, or set `done` and `reward`."""
        ...


Run = TypeVar("Run", bound=Conversation)


@torch.no_grad()
def sample(model: Any, prompts: list[list[int]], end: int, *, tokens: int, temperature: float = 1.0) -> list[list[int]]:
    """A continuation of each prompt, up to and with the end token, or `tokens` long."""
    device = model.get_input_embeddings().weight.device
    longest = max(map(len, prompts))
    output = model.generate(
        input_ids=torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=device),
        attention_mask=torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device),
        max_new_tokens=tokens,
        do_sample=True,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        eos_token_id=end,
        pad_token_id=0,
    )[:, longest:].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in output]


def play_out(
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    episodes: Sequence[Conversation],
    *,
    tokens: int = 32,
    temperature: float = 1.0,
    batch: int = 512,
) -> dict[str, float]:
    """Play all episodes to their ends, `tokens` at most a reply. torch's global generator decides what is sampled.

    Returns means over the episodes: reward, calls, sampled tokens; and `exact`, the share of prompts that continue the
    prompt and reply before them token by token.
    """
    end = int(tokenizer.convert_tokens_to_ids(END))
    calls = sampled = exact = continued = 0
    before: dict[int, list[int]] = {}
    while active := [e for e in episodes if not e.done][:batch]:
        prompts = [render(tokenizer, e.messages, e.tools, ask=True) for e in active]
        for e, prompt in zip(active, prompts, strict=True):
            if id(e) in before:
                continued += 1
                exact += prompt[: len(before[id(e)])] == before[id(e)]
        replies = sample(model, prompts, end, tokens=tokens, temperature=temperature)
        for e, prompt, reply in zip(active, prompts, replies, strict=True):
            calls += 1
            sampled += len(reply)
            before[id(e)] = prompt + reply
            e.act(parse(str(tokenizer.decode(reply)).removesuffix(END)))
    count = max(1, len(episodes))
    return {
        "reward": sum(e.reward for e in episodes) / count,
        "calls": calls / count,
        "tokens": sampled / count,
        "exact": exact / max(1, continued),
    }


def keeping(begin: Callable[[int], Run], begun: list[Run]) -> Callable[[int, int], Run]:
    """A `start` for ``measure`` that keeps each run that it begins. `begin(i)` begins one of the i-th held-out item."""

    def start(item: int, _: int) -> Run:
        begun.append(begin(item))
        return begun[-1]

    return start


def measure(
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    start: Callable[[int, int], Conversation],
    *,
    items: int,
    k: int = 8,
    k_items: int = 50,
    good: float = 1.0,
    tokens: int = 32,
) -> dict[str, float]:
    """What a model does at temperature 1: `start(i, run)` begins a run of the i-th held-out item.

    Adds pass@k: the share of the first `k_items` items of which one of `k` runs has a reward of at least `good`.
    """
    model.eval()
    figures = play_out(model, tokenizer, [start(i, 0) for i in range(items)], tokens=tokens)
    runs = [[start(i, run) for run in range(k)] for i in range(k_items)]
    play_out(model, tokenizer, [episode for item in runs for episode in item], tokens=tokens)
    passed = sum(any(episode.reward >= good for episode in item) for item in runs)
    return {**figures, f"pass@{k}": passed / max(1, k_items)}
