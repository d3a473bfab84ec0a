"""Make a small model: a Qwen3-shaped network that has read conversations.

rows = gather(make_some, count=100_000, seed=0)      # in all cores
model = make_network(tokenizer, words)
train(model, pack(rows, "cuda"), steps=1200, batch=512)
save(model, tokenizer, out)
"""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from common.hermes import END, encode, render, spelling_pairs
from common.reading import begin_reading, look_back

__all__ = ["Packed", "Row", "again", "gather", "make_network", "of_messages", "own_words", "pack", "save", "train"]

CONTEXT_WEIGHT = 0.1  # of the loss on what the model reads; its own words weigh 1
CHUNK = 250  # rows that one process makes at a time


@dataclass
class Row:
    """One conversation. Where a player could as well have said other tokens, `soft` has the chances of all of them."""

    ids: list[int]
    own: list[bool]
    """As long as `ids`: True where the assistant wrote the token."""
    soft: list[tuple[int, Mapping[int, float]]] = field(default_factory=list)
    """(place in `ids`, token id → chance; they sum to 1)."""


class Packed(NamedTuple):
    """Rows as tensors."""

    ids: torch.Tensor
    """int32 [rows, longest], padded with 0."""
    own: torch.Tensor
    """bool, same shape."""
    lengths: torch.Tensor
    """int64 [rows], on the CPU."""
    places: torch.Tensor
    """int64 [rows, most]: where soft targets stand; 0 where there is none."""
    tokens: torch.Tensor
    """int64 [rows, most, widest]: the tokens that have a chance."""
    chances: torch.Tensor
    """float [rows, most, widest]."""


def own_words(ids: Sequence[int], assistant: int, end: int) -> list[bool]:
    """True where a token is the assistant's: after its role token, up to and with the end token."""
    own, inside = [], False
    for token in ids:
        own.append(inside)
        inside = (inside and token != end) or token == assistant
    return own


def again(ids: Sequence[int], tokens: Collection[int]) -> list[bool]:
    """True where one of `tokens` stands that has stood before."""
    own, seen = [], set[int]()
    for token in ids:
        own.append(token in seen)
        if token in tokens:
            seen.add(token)
    return own


def of_messages(
    tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None
) -> Row:
    """A conversation as a row, without soft targets."""
    ids = render(tokenizer, messages, tools)
    assistant, end = encode(tokenizer, "<|im_start|>assistant\n" + END)
    return Row(ids, own_words(ids, assistant, end))


def gather(make: Callable[[int, int], list[Row]], *, count: int, seed: int, processes: int | None = None) -> list[Row]:
    """`count` rows, made in as many processes as there are cores: `make(seed, count)` makes some, by a function of a module.

    The same seed gives the same rows, whatever the number of processes.
    """
    jobs = [(seed * 1_000_003 + i, min(CHUNK, count - at)) for i, at in enumerate(range(0, count, CHUNK))]
    processes = processes or os.cpu_count() or 1
    if processes == 1 or len(jobs) == 1:
        parts = [make(*job) for job in jobs]
    else:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            parts = pool.starmap(make, jobs, chunksize=1)
    return [row for part in parts for row in part]


def counts(parts: Iterable[Sized]) -> NDArray[np.int64]:
    """The length of each."""
    return np.fromiter(map(len, parts), np.int64)


def within(lengths: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
    """For the parts of these lengths, one after another: which part each element is in (int64), and where in it."""
    part = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(len(part)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return torch.from_numpy(part), torch.from_numpy(place)


def pack(rows: Sequence[Row], device: str | torch.device = "cpu") -> Packed:
    """Rows as tensors on a device."""
    # Flat arrays, scattered at once: a tensor for each row or target would take minutes.
    lengths, turns = counts(row.ids for row in rows), counts(row.soft for row in rows)
    soft = [choice for row in rows for _, choice in row.soft]
    widths = counts(soft)
    ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int32)
    own = torch.zeros(ids.shape, dtype=torch.bool)
    places = torch.zeros(len(rows), max(1, int(turns.max())), dtype=torch.int64)
    tokens = torch.zeros(*places.shape, max(1, *widths.tolist(), 1), dtype=torch.int64)
    chances = torch.zeros(tokens.shape)
    token = within(lengths)
    ids[token] = torch.from_numpy(np.fromiter(itertools.chain.from_iterable(row.ids for row in rows), np.int32))
    own[token] = torch.from_numpy(np.fromiter(itertools.chain.from_iterable(row.own for row in rows), np.bool_))
    row_, turn = within(turns)
    places[row_, turn] = torch.tensor([place for row in rows for place, _ in row.soft], dtype=torch.int64)
    target, slot = within(widths)
    at = (row_[target], turn[target], slot)
    tokens[at] = torch.from_numpy(np.fromiter(itertools.chain.from_iterable(soft), np.int64))
    chances[at] = torch.from_numpy(np.fromiter((x for choice in soft for x in choice.values()), np.float32))
    moved = (x.to(device) for x in (ids, own))
    return Packed(*moved, torch.from_numpy(lengths), *(x.to(device) for x in (places, tokens, chances)))


def make_network(
    tokenizer: PreTrainedTokenizerFast,
    words: Iterable[str],
    *,
    layers: int = 2,
    hidden: int = 256,
    intermediate: int = 1024,
    heads: int = 4,
    positions: int = 1024,
    vocabulary: int = 0,
    finding: bool = False,
    reading: bool = False,
) -> Qwen3ForCausalLM:
    """The untrained network: about 2 million parameters as it stands. `words` are the tokenizer's.

    `vocabulary`: at least so many tokens, the last of them unused. `finding`: begin with heads that find what stands behind
    a token (``begin_finding``). `reading`: begin with heads for what stands near two tokens, too
    (``begin_reading``).
    """
    config = Qwen3Config(
        vocab_size=max(len(tokenizer), vocabulary),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=64,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=0,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    embedding = model.get_input_embeddings().weight.data
    bare, spaced = (torch.tensor(ids) for ids in zip(*spelling_pairs(tokenizer, words), strict=True))
    # The two spellings of a word share half of their variance, so that copying is found early.
    embedding[spaced] = (embedding[bare] + embedding[spaced]) / 2**0.5
    if finding or reading:
        begin_finding(model)
    if reading:
        begin_reading(model)
    model.generation_config.eos_token_id = config.eos_token_id
    model.generation_config.pad_token_id = 0
    return model


@torch.no_grad()
def begin_finding(model: Qwen3ForCausalLM) -> None:
    """Begin with heads that find what stands behind a token: an induction head, which few rows alone don't bring about.

    A head of the first layer looks at the token before, and writes down which it was. A head of the second looks for the
    token that it stands on, as it is or as what was written down. All the rest is left to training.
    """
    size, hidden = model.config.head_dim, model.config.hidden_size
    first, second = (model.model.layers[n].self_attn for n in range(2))
    embedding = model.get_input_embeddings().weight
    same = torch.ones(hidden) / hidden**0.5
    embedding += 0.5 * embedding.norm(dim=1).mean() * same  # what all tokens share: by it a head can see a place
    for attention in (model.model.layers[n].self_attn for n in range(len(model.model.layers))):
        turned, kept = (torch.linalg.qr(torch.randn(hidden, hidden))[0] for _ in range(2))
        attention.q_proj.weight.copy_(0.3 * turned)
        attention.k_proj.weight.copy_(0.3 * turned)
        attention.v_proj.weight.copy_(0.2 * kept)
        attention.o_proj.weight.copy_(0.2 * kept.T)
    look_back(first, 0, 1, same)
    part = torch.linalg.qr(torch.randn(hidden, size))[0].T
    part = part - torch.outer(part @ same, same)
    first.v_proj.weight[:size] = 0.25 * part
    first.o_proj.weight[:, :size] = 0.25 * part.T
    second.q_proj.weight[:size] = 0.3 * part
    second.k_proj.weight[:size] = 0.3 * part
    for attention, sharper in ((first, 1.5), (second, 1.4)):
        attention.q_norm.weight.mul_(sharper)
        attention.k_norm.weight.mul_(sharper)


def loss_of(model: Any, batch: Packed) -> tuple[torch.Tensor, torch.Tensor]:
    """The training loss (0-d) and the mean loss on the assistant's own tokens (0-d), in nats."""
    ids = batch.ids.long()
    # No mask: rows are padded at their ends, where no earlier token looks, and attention without one is faster.
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    row, turn = (batch.places > 0).nonzero(as_tuple=True)
    if len(row):
        place = batch.places[row, turn]
        chosen = logits[row, place - 1].log_softmax(-1).gather(1, batch.tokens[row, turn])
        losses = losses.index_put((row, place - 1), -(chosen * batch.chances[row, turn]).sum(-1))
    mine = batch.own[:, 1:].float()
    context = (ids[:, 1:] != 0).float() - mine
    own_loss = (losses * mine).sum() / mine.sum().clamp(min=1)
    return own_loss + CONTEXT_WEIGHT * (losses * context).sum() / context.sum().clamp(min=1), own_loss


def some_of(data: Packed, pick: torch.Tensor) -> Packed:
    """The picked rows (int64 [n], on the CPU), cut to the longest of them."""
    longest = int(data.lengths[pick].max())
    there = pick.to(data.ids.device)
    ids, own = data.ids[there, :longest], data.own[there, :longest]
    return Packed(ids, own, data.lengths[pick], data.places[there], data.tokens[there], data.chances[there])


def train(
    model: Any,
    data: Packed,
    *,
    steps: int,
    batch: int = 512,
    lr: float = 2e-3,
    warmup: int = 100,
    seed: int = 0,
    every: int = 100,
    seconds: float = float("inf"),
) -> list[float]:
    """Pre-train in place on the device of `data`. Returns the losses on the assistant's own tokens that were printed.

    With `seconds` it ends in time: the learning rate falls by the clock where that is faster than by the steps.
    """
    device = data.ids.device
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.05)
    order = torch.Generator().manual_seed(seed)
    curve: list[float] = []
    began = time.monotonic()
    step, share = 0, 0.0
    while share < 1:
        rate = lr * min(1.0, (step + 1) / warmup) * max(0.02, 1 - share)
        for group in optimizer.param_groups:
            group["lr"] = rate
        pick = torch.randint(len(data.ids), (batch,), generator=order)
        with torch.autocast(device.type, torch.bfloat16):
            loss, own_loss = loss_of(model, some_of(data, pick))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        share = max(step / steps, (time.monotonic() - began) / seconds)
        if step % every == 0 or share >= 1:
            curve.append(own_loss.item())
            print(f"step {step} own loss {curve[-1]:.4f} {time.monotonic() - began:.0f} s", flush=True)
    return curve


def save(model: Any, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write weights in bf16, the configuration and the tokenizer into a folder. The model stays as and where it is."""
    copy.deepcopy(model).to("cpu", torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
