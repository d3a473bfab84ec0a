"""What the search plays is what the model would say: each log-probability belongs to the very tokens before it."""

from __future__ import annotations

import random
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch
from common.hermes import END
from common.task import load_task
from transformers import AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "curves"))

import search_sampler
from search_run import STARTS
from search_sampler import PolicySampler, RaggedCache, common


def sampler(task: str, tokens: int | None) -> PolicySampler:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    folder = str(load_task(task).model)
    return PolicySampler(folder, AutoTokenizer.from_pretrained(folder), torch.device("cpu"), tokens)


def by_one_pass(model, prompt: list[int], reply: list[int]) -> list[float]:
    """The reply's log-probabilities without a cache."""
    with torch.no_grad():
        logps = model(input_ids=torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return [float(logps[i, token]) for i, token in enumerate(reply)]


@pytest.mark.parametrize(("task", "tokens"), [("tictactoe", 40), ("clue", 48), ("words", 40), ("retail", 9)])
def test_each_log_probability_is_that_of_a_pass_over_the_whole_call(task: str, tokens: int) -> None:
    """Clue strips its reasoning from the history: what was read of an episode is no prefix of its next prompt then."""
    player = sampler(task, tokens)
    start, rng = STARTS[task][0], random.Random(0)
    episodes = [start(item, rng) for item in islice(load_task(task).items("train", 0), 3) for _ in range(3)]
    calls = player.play(episodes)
    assert all(e.done for e in episodes)
    assert max(map(len, calls)) > 1
    for said in calls:
        for call in said:
            assert call.logprobs == pytest.approx(by_one_pass(player.model, call.prompt, call.reply), abs=2e-4)
            assert len(call.reply) <= tokens
            assert call.cut == (call.reply[-1] != player.end)
            assert player.end not in call.reply[:-1]


class Babble:
    """Says anything, `calls` times; its history keeps only every second of its messages."""

    tools: list[dict] = []
    reward = 0.0

    def __init__(self, calls: int, text: str = "1 2 3") -> None:
        self.left, self.done = calls, False
        self.messages = [{"role": "user", "content": text}]

    def act(self, message: dict) -> None:
        self.left -= 1
        self.done = self.left == 0
        if self.left % 2:
            self.messages.append({"role": "assistant", "content": message["content"] or ""})
        self.messages.append({"role": "user", "content": f"{self.left}"})


def test_rows_that_go_on_longer_than_the_others_are_what_they_would_be_alone() -> None:
    """A model that hardly ever ends: the few rows that go on leave the others behind, in replies and in calls."""
    player = sampler("tictactoe", 70)
    weight = player.model.get_output_embeddings().weight
    with torch.no_grad():
        weight.copy_(weight * 0.05)  # nearly uniform: an end token comes once in some hundred tokens
    player.model.lm_head.weight = torch.nn.Parameter(weight.clone())
    episodes = [Babble(1 + i % 4) for i in range(40)]
    calls = player.play(episodes)
    assert [len(said) for said in calls] == [1 + i % 4 for i in range(40)]
    everything = [call for said in calls for call in said]
    assert any(call.cut for call in everything)
    assert any(search_sampler.BLOCK // 4 < len(call.reply) < 70 for call in everything)
    for call in everything:
        assert call.logprobs == pytest.approx(by_one_pass(player.model, call.prompt, call.reply), abs=2e-4)


def test_a_prompt_that_leaves_no_room_ends_its_episode() -> None:
    player = sampler("words", None)
    long, short = Babble(1, "1 " * player.most), Babble(1)
    player.tokens = 4
    calls = player.play([long, short])
    assert (calls[0], len(calls[1])) == ([], 1)
    assert long.done


def test_a_cache_keeps_what_rows_hold_when_rows_are_taken() -> None:
    cache = RaggedCache(torch.tensor([0, 0]))
    cache.begin(3)
    keys = torch.arange(12.0).reshape(2, 1, 3, 2)
    cache.update(keys, -keys, 0)
    cache.lengths = torch.tensor([3, 1])
    taken = cache.take(torch.tensor([1, 0, 1]))
    mask = taken.begin(1)
    assert mask[:, 0, 0].tolist() == [[True, True, False, False], [True] * 4, [True, True, False, False]]
    held, negative = taken.update(torch.full((3, 1, 1, 2), 9.0), torch.full((3, 1, 1, 2), -9.0), 0)
    assert held[0, 0, :2].tolist() == [keys[1, 0, 0].tolist(), [9.0, 9.0]]
    assert held[1, 0].tolist() == [*keys[0, 0].tolist(), [9.0, 9.0]]
    assert torch.equal(held, -negative)


def test_how_many_tokens_are_common() -> None:
    assert [common([1, 2, 3], b) for b in ([1, 2, 3, 4], [1, 2], [1, 5, 3], [])] == [3, 2, 1, 0]


def test_the_end_token_is_the_tasks() -> None:
    player = sampler("words", None)
    assert player.tokenizer.convert_ids_to_tokens(player.end) == END
