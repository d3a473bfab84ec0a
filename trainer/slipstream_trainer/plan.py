"""How a batch is laid out: which chains share a tree, which rows share a micro-batch.

Chains stand in lexicographic order, so those that begin alike are neighbours. A *row* is a run of neighbours packed as one prefix tree; a run of
one is a plain sequence. Micro-batches hold rows of similar length, at most ``budget`` tokens with padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slipstream_trainer.rows import Chain, Ints, Sample, merge_chains
from slipstream_trainer.tree import Index, Tree, common_prefix, pack_tree

Layout = Literal["per_call", "merged", "tree", "auto"]


@dataclass(frozen=True, slots=True)
class Costs:
    """Relative cost of computing a token, and of a (query, key) pair of attention, by the model's shape.

    ``dense``: attention is computed over all pairs of a tree row and its mask is read (CPU); else only over ancestors (FlexAttention).
    """

    token: float = 1.0
    pair: float = 0.0
    dense: bool = True

    def row(self, tokens: int, pairs: int, *, plain: bool) -> float:
        if plain:
            return self.token * tokens + self.pair * tokens * tokens / 2
        return self.token * tokens + self.pair * (2.5 * tokens * tokens if self.dense else pairs)


@dataclass(slots=True, eq=False)
class Slots:
    """The scored tokens of a micro-batch, flat (S). ``source_S`` indexes its padded rows, flattened; the others the batch's samples."""

    source_S: Index
    target_S: Index
    token_S: Index
    """Which token of the batch it is: index into ``Scored``'s arrays."""


@dataclass(slots=True, eq=False)
class MicroBatch:
    ids_RN: NDArray[np.int64]
    positions_RN: NDArray[np.int64] | None
    """None, and no ends: plain sequences, right-padded, which a causal mask serves."""
    ends_RN: NDArray[np.int64] | None
    tokens: int
    """Without padding."""
    slots: Slots

    @property
    def computed(self) -> int:
        return int(self.ids_RN.size)


@dataclass(slots=True, eq=False)
class Scored:
    """Every trained token of the batch, flat (T): what the loss needs of it. ``unit_T`` is its episode's row in the loss, ``column_T`` its place there."""

    sample_T: Index
    target_T: Index
    logprob_T: NDArray[np.float32]
    temperature_T: NDArray[np.float32]
    advantage_T: NDArray[np.float32]
    unit_T: Index
    column_T: Index
    units: int

    @property
    def tokens(self) -> int:
        return len(self.target_T)


@dataclass(slots=True, eq=False)
class Plan:
    micro: list[MicroBatch]
    scored: Scored
    layout: str
    tokens_per_call: int
    """Tokens that a sequence for every call would compute; likewise merged and as trees."""
    tokens_merged: int
    tokens_tree: int
    too_long: int = 0
    """Chains over the budget: their samples are not trained on."""

    @property
    def tokens(self) -> int:
        return sum(m.tokens for m in self.micro)

    @property
    def padding(self) -> float:
        computed = sum(m.computed for m in self.micro)
        return 1 - self.tokens / computed if computed else 0.0


@dataclass(slots=True, eq=False)
class _Row:
    chains: list[int]
    size: int = 0
    pairs: int = 0
    tree: Tree | None = field(default=None)


def score(samples: Sequence[Sample]) -> tuple[Scored, list[int]]:
    """The trained tokens of ``samples`` (trainable ones), and where each sample's begin. Units are episodes: a loss's sequence is all that one run said."""
    units: dict[str, int] = {}
    filled: dict[int, int] = {}
    starts, total = [0] * len(samples), 0
    parts: list[tuple[Any, ...]] = []
    for i, s in enumerate(samples):
        starts[i] = total
        if not s.trainable:
            continue
        n = len(s.completion_C)
        unit = units.setdefault(s.episode, len(units))
        column = filled.get(unit, 0)
        filled[unit] = column + n
        total += n
        parts.append((i, s.completion_C, s.logprobs_C, s.temperature, s.advantage, unit, np.arange(column, column + n)))
    lengths = [len(p[1]) for p in parts]

    def each(index: int, dtype: type) -> NDArray[Any]:
        return np.asarray(np.repeat(np.array([p[index] for p in parts], dtype=dtype), lengths))

    def join(index: int, dtype: type) -> NDArray[Any]:
        found: NDArray[Any] = np.concatenate([np.zeros(0, dtype=dtype), *(p[index] for p in parts)]).astype(dtype)
        return found

    scored = Scored(
        each(0, np.int64), join(1, np.int64), join(2, np.float32), each(3, np.float32), each(4, np.float32), each(5, np.int64),
        join(6, np.int64), len(units),
    )  # fmt: skip
    return scored, starts


def cut(chains: Sequence[Ints], layout: Layout, costs: Costs, budget: int) -> list[list[int]]:
    """Runs of neighbouring chains. Greedy: a chain joins the run before it when that is cheaper than standing alone, within the budget."""
    runs: list[list[int]] = []
    size = pairs = 0
    for i, chain in enumerate(chains):
        n = len(chain)
        alone = costs.row(n, n * (n + 1) // 2, plain=True)
        if runs and layout in ("tree", "auto"):
            shared = common_prefix(chains[i - 1], chain)
            new = n - shared
            more = pairs + new * shared + new * (new + 1) // 2
            was = costs.row(size, pairs, plain=len(runs[-1]) == 1)
            cheaper = costs.row(size + new, more, plain=False) - was < alone
            if shared and size + new <= budget and (layout == "tree" or cheaper):
                runs[-1].append(i)
                size, pairs = size + new, more
                continue
        runs.append([i])
        size, pairs = n, n * (n + 1) // 2
    return runs


def _pad(arrays: Sequence[NDArray[np.generic]], width: int, fill: int) -> NDArray[np.int64]:
    out = np.full((len(arrays), width), fill, dtype=np.int64)
    for row, a in zip(out, arrays, strict=True):
        row[: len(a)] = a
    return out


def _micro(
    rows: Sequence[_Row], chains: Sequence[Chain], samples: Sequence[Sample], starts: Sequence[int], multiple: int = 1
) -> MicroBatch:
    """Rows side by side. Padding stands behind: no real token sees it, and it sees itself alone."""
    width = -(-max(r.size for r in rows) // multiple) * multiple
    trees = [r.tree for r in rows if r.tree is not None]
    plain = not trees
    ids = _pad([r.tree.ids_N if r.tree else chains[r.chains[0]].ids_L for r in rows], width, 0)
    positions = ends = None
    if not plain:
        positions = _pad([r.tree.positions_N if r.tree else np.arange(r.size) for r in rows], width, 0)
        ends = np.tile(np.arange(1, width + 1, dtype=np.int64), (len(rows), 1))
        for at, r in enumerate(rows):
            ends[at, : r.size] = r.tree.ends_N if r.tree else r.size
    source, target, token = [], [], []
    for at, r in enumerate(rows):
        for k, c in enumerate(r.chains):
            for i in chains[c].samples:
                s = samples[i]
                n, first = len(s.completion_C), len(s.prompt_P) - 1
                where = np.arange(first, first + n)
                source.append(at * width + (r.tree.where[k][where] if r.tree else where))
                target.append(s.completion_C)
                token.append(np.arange(starts[i], starts[i] + n))
    slots = Slots(*(np.concatenate(x).astype(np.int64) for x in (source, target, token)))
    return MicroBatch(ids, positions, ends, sum(r.size for r in rows), slots)


def _fill(rows: list[_Row], budget: int) -> list[list[_Row]]:
    """Rows of one kind, longest first, into micro-batches of at most ``budget`` padded tokens."""
    out: list[list[_Row]] = []
    for row in sorted(rows, key=lambda r: -r.size):
        if out and out[-1][0].size * (len(out[-1]) + 1) <= budget:
            out[-1].append(row)
        else:
            out.append([row])
    return out


def refuse_long(samples: Sequence[Sample], budget: int) -> int:
    """Mark samples that do not fit the budget even alone as untrainable (``too_long``). Returns how many: nothing is cut silently."""
    long = [s for s in samples if s.trainable and len(s.prompt_P) + len(s.completion_C) - 1 > budget]
    for s in long:
        s.trainable, s.reason = False, "too_long"
    return len(long)


def make_plan(
    samples: Sequence[Sample], *, layout: Layout = "auto", budget: int = 16_384, micro: int | None = None, costs: Costs | None = None,
    multiple: int = 1,
) -> Plan:  # fmt: skip
    """Lay out the trainable ones of ``samples``. ``budget``: most tokens of a row; ``micro``: of a micro-batch (default: the budget).

    Rows' lengths are multiples of ``multiple`` (a GPU's blocks).
    """
    costs = costs or Costs()
    too_long = refuse_long(samples, budget)
    chains = merge_chains(samples, per_call=layout == "per_call")
    scored, starts = score(samples)
    ids = [c.ids_L for c in chains]
    rows = []
    each = min(micro or budget, budget)
    for run in cut(ids, layout, costs, each):
        tree = pack_tree([ids[c] for c in run]) if len(run) > 1 else None
        rows.append(_Row(run, tree.size if tree else len(ids[run[0]]), tree=tree))
    filled = _fill([r for r in rows if r.tree is None], each) + _fill([r for r in rows if r.tree], each)
    out = [_micro(r, chains, samples, starts, multiple) for r in filled]
    alone = sum(len(s.prompt_P) + len(s.completion_C) - 1 for s in samples if s.trainable)
    merged = sum(map(len, ids)) if layout != "per_call" else sum(len(c.ids_L) for c in merge_chains(samples))
    shared = sum(common_prefix(a, b) for a, b in itertools.pairwise(ids))
    tree_tokens = sum(map(len, ids)) - shared
    return Plan(out, scored, layout, alone, merged, tree_tokens, too_long)
