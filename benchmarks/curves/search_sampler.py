"""Plays many episodes of a task at once, in process: the policy is sampled from with a KV cache that outlives a call.

All episodes go on in step. A prompt that begins with what an episode has said and read so far is computed from there on,
runs of one item compute their first prompt once, and each sampled token is one pass over all episodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch
from common.hermes import END, encode, parse
from common.sampling import Conversation
from peft.tuners.lora import LoraLayer
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

__all__ = ["Call", "PolicySampler", "RaggedCache", "merged_weights"]

BLOCK = 64
"""Tokens by which a cache grows."""
FEW = 0.5
"""Share of the rows below which the others are left out."""


@dataclass(slots=True)
class Call:
    """One call of an episode. `cut`: it did not end by itself."""

    prompt: list[int]
    reply: list[int]
    logprobs: list[float]
    cut: bool


class RaggedCache:
    """Keys and values of rows of different lengths: each layer (rows, heads, tokens, size)."""

    def __init__(self, lengths: torch.Tensor) -> None:
        """`lengths`: int64 [rows], on the device; as many tokens of each row are there."""
        self.lengths = lengths
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.place = torch.zeros(0, 0, dtype=torch.long)
        """int64 [rows, new tokens]: where the tokens that come go."""
        self.used = 0

    def begin(self, count: int) -> torch.Tensor:
        """`count` tokens come to each row. → bool [rows, 1, count, used]: what each may look at."""
        device = self.lengths.device
        self.place = self.lengths[:, None] + torch.arange(count, device=device)
        self.used = int(self.lengths.max()) + count
        return (torch.arange(self.used, device=device) <= self.place[:, :, None])[:, None]

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What transformers' attention calls. Both (rows, heads, new tokens, size)."""
        held = self.layers.get(layer)
        if held is None or held[0].shape[2] < self.used:
            held = self.layers[layer] = (self._grown(held, 0, keys), self._grown(held, 1, values))
        rows = torch.arange(len(keys), device=keys.device)[:, None]
        held[0][rows, :, self.place] = keys.transpose(1, 2)
        held[1][rows, :, self.place] = values.transpose(1, 2)
        return held[0][:, :, : self.used], held[1][:, :, : self.used]

    def _grown(self, held: tuple[torch.Tensor, torch.Tensor] | None, which: int, like: torch.Tensor) -> torch.Tensor:
        rows, heads, _, size = like.shape
        room = like.new_zeros(rows, heads, math.ceil(self.used / BLOCK + 1) * BLOCK, size)
        if held is not None:
            room[:, :, : held[which].shape[2]] = held[which]
        return room

    def take(self, rows: torch.Tensor) -> RaggedCache:
        """A copy of these rows (int64 [n]); a row may come twice."""
        found = RaggedCache(self.lengths[rows])
        longest = int(found.lengths.max()) if len(rows) else 0
        found.layers = {n: (k[rows, :, :longest], v[rows, :, :longest]) for n, (k, v) in self.layers.items()}
        return found


def merged_weights(policy: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights of the layers that LoRA is on, with LoRA in them, in fp32, by their names in the base model."""
    return {
        f"{name.removeprefix('base_model.model.')}.weight": (
            module.get_base_layer().weight.float() + module.get_delta_weight("default").float()
        ).detach()
        for name, module in policy.named_modules()
        if isinstance(module, LoraLayer)
    }


@dataclass
class PolicySampler:
    """The policy as an engine would have it: its own copy of the weights, in fp32.

    `tokens`: the most of a reply, as the task's agent asks for (None: what fits the model).
    """

    path: str
    tokenizer: PreTrainedTokenizerFast
    device: torch.device
    tokens: int | None = None
    stumble: float = 0.0
    """Chance that another token is taken where a reply would end: what happens rarely, more often."""
    model: Any = field(init=False)

    def __post_init__(self) -> None:
        model = AutoModelForCausalLM.from_pretrained(self.path, dtype=torch.float32, attn_implementation="sdpa")
        self.model = model.eval().to(self.device).requires_grad_(False)
        self.end = int(self.tokenizer.convert_tokens_to_ids(END))
        self.most = int(model.config.max_position_embeddings)

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Sample from these from now on (``merged_weights``)."""
        for name, weight in weights.items():
            self.model.get_parameter(name).copy_(weight)

    @torch.no_grad()
    def play(self, episodes: Sequence[Conversation]) -> list[list[Call]]:
        """Play all to their ends. → The calls of each. One whose messages no longer fit the model has ended."""
        calls: list[list[Call]] = [[] for _ in episodes]
        cache, there, known = None, list(range(len(episodes))), [[] for _ in episodes]
        while True:
            prompts = self._prompts(episodes)
            rows = [row for row, index in enumerate(there) if index in prompts]
            if not rows:
                return calls
            if cache is None:
                cache = self._first([prompts[there[row]] for row in rows])
                known = [prompts[there[row]][:-1] for row in rows]
            elif len(rows) <= FEW * len(there):
                cache = cache.take(torch.tensor(rows, device=self.device))
                known = [known[row] for row in rows]
            else:
                rows = list(range(len(there)))
            there = [there[row] for row in rows]
            wanted = [prompts.get(index) for index in there]
            replies = self._replies(cache, known, wanted)
            lengths = cache.lengths.tolist()
            for row, (index, call) in enumerate(zip(there, replies, strict=True)):
                if call is not None:
                    calls[index].append(call)
                    known[row] = (call.prompt + call.reply)[: lengths[row]]
                    said = str(self.tokenizer.decode(call.reply)).removesuffix(END)
                    episodes[index].act(parse(said))

    def _prompts(self, episodes: Sequence[Conversation]) -> dict[int, list[int]]:
        """Index → the ids of what it asks next, of those that go on."""
        found = {}
        for index, e in enumerate(episodes):
            if e.done:
                continue
            text = self.tokenizer.apply_chat_template(
                e.messages, tools=e.tools, add_generation_prompt=True, tokenize=False
            )
            ids = encode(self.tokenizer, str(text))
            e.done = len(ids) >= self.most  # an engine refuses what leaves no room for a reply
            if not e.done:
                found[index] = ids
        return found

    def _first(self, prompts: list[list[int]]) -> RaggedCache:
        """The first prompts up to their last tokens: each text once."""
        texts = list(dict.fromkeys(map(tuple, prompts)))
        at = {text: i for i, text in enumerate(texts)}
        cache = RaggedCache(torch.zeros(len(texts), dtype=torch.long, device=self.device))
        self._feed(cache, [list(text[:-1]) for text in texts])
        return cache.take(torch.tensor([at[tuple(p)] for p in prompts], device=self.device))

    def _replies(self, cache: RaggedCache, known: list[list[int]], wanted: list[list[int] | None]) -> list[Call | None]:
        """A reply to each prompt. A row without one stays as it is."""
        shared = [
            len(old) if new is None else min(len(new) - 1, common(old, new))
            for old, new in zip(known, wanted, strict=True)
        ]
        cache.lengths = torch.tensor(shared, device=self.device)
        new = [[] if ids is None else ids[at:] for ids, at in zip(wanted, shared, strict=True)]
        logits = self._feed(cache, new)
        room = [0 if ids is None else min(self.tokens or self.most, self.most - len(ids)) for ids in wanted]
        said, logprobs = self._decode(cache, logits, torch.tensor(room, device=self.device))
        found: list[Call | None] = []
        for ids, tokens, chances, count in zip(wanted, said.tolist(), logprobs.tolist(), room, strict=True):
            length = min(count, tokens.index(self.end) + 1 if self.end in tokens else len(tokens))
            cut = length > 0 and tokens[length - 1] != self.end
            found.append(None if ids is None else Call(ids, tokens[:length], chances[:length], cut))
        return found

    def _feed(self, cache: RaggedCache, new: list[list[int]]) -> torch.Tensor:
        """Read the tokens of each row. → Logits (rows, vocabulary) after the last of them."""
        counts = torch.tensor([len(ids) for ids in new], device=self.device)
        width = int(counts.max())
        ids = torch.tensor([ids + [0] * (width - len(ids)) for ids in new], device=self.device)
        return self._pass(cache, ids, counts)

    def _pass(self, cache: RaggedCache, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        mask = cache.begin(ids.shape[1])
        hidden = self.model.model(
            input_ids=ids,
            attention_mask={"full_attention": mask},
            position_ids=cache.place,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        cache.lengths = cache.lengths + counts
        last = hidden[torch.arange(len(ids), device=self.device), (counts - 1).clamp(min=0)]
        logits: torch.Tensor = self.model.lm_head(last).float()
        return logits

    def _decode(
        self, cache: RaggedCache, logits: torch.Tensor, room: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sample up to `room` tokens of each row. → (tokens, log-probabilities), both (rows, longest).

        What stands after a row's end token, or after its room, means nothing. A row's last token is not in the cache.
        """
        tokens, chances = [], []
        alive, count = room > 0, 0
        while True:
            logps = logits.log_softmax(-1)
            token = torch.multinomial(logps.exp(), 1)
            if self.stumble:
                slips = (token == self.end) & (torch.rand(token.shape, device=self.device) < self.stumble)
                token = torch.where(slips, torch.randint_like(token, logps.shape[1]), token)
            tokens.append(token)
            chances.append(logps.gather(1, token))
            count += 1
            alive = alive & (token[:, 0] != self.end) & (count < room)
            going = int(alive.sum())
            if not going:
                return torch.cat(tokens, 1), torch.cat(chances, 1)
            if count >= BLOCK // 4 and going <= FEW * len(alive):
                return self._rest(cache, alive, room - count, tokens, chances)
            logits = self._pass(cache, token, alive.long())

    def _rest(
        self,
        cache: RaggedCache,
        alive: torch.Tensor,
        room: torch.Tensor,
        tokens: list[torch.Tensor],
        chances: list[torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Go on with the few rows that have not ended. Their cache here stays as it is: it can be read again."""
        rows = alive.nonzero()[:, 0]
        few = cache.take(rows)
        logits = self._pass(few, tokens[-1][rows], torch.ones_like(rows))
        more, logprobs = self._decode(few, logits, room[rows])
        said, found = torch.cat(tokens, 1), torch.cat(chances, 1)
        wide = torch.nn.functional.pad(said, (0, more.shape[1]), value=self.end)
        deep = torch.nn.functional.pad(found, (0, more.shape[1]))
        wide[rows, said.shape[1] :], deep[rows, said.shape[1] :] = more, logprobs
        return wide, deep


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    if len(b) >= len(a) and list(b[: len(a)]) == list(a):
        return len(a)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
