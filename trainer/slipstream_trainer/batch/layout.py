"""How a batch is laid out: which chains share a tree, and which rows a micro-batch, by what computing them costs.

Prefix trees: chains that begin alike share the tokens they begin with.

Nodes stand in depth-first pre-order, so that a node's subtree is the range from it to its ``end``, and "key k is an
ancestor of query q (or q itself)" is ``k <= q < end[k]``: the whole attention mask is one number a token.

Chains stand in lexicographic order, so those that begin alike are neighbours. A *row* is a run of neighbours packed
as one prefix tree; a run of one is a plain sequence. Micro-batches hold rows of similar length side by side, or
(FlexAttention) rows end to end, at most ``budget`` tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from slipstream_trainer.batch.rows import NO_FILTER, Chain, Ints, Sample, merge_chains

Index = NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Tree:
    """``where[i][d]`` is the node of chain i's token d. ``positions_N`` are depths, as in the chain alone."""

    ids_N: Ints
    positions_N: Index
    ends_N: Index
    where: list[Index]

    @property
    def size(self) -> int:
        return len(self.ids_N)


def common_prefix(a: Ints, b: Ints) -> int:
    """Tokens that both begin with."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n


def pack_tree(chains: Sequence[Ints]) -> Tree:
    """The tree of ``chains`` in lexicographic order (``rows.merge_chains``). Raises ``ValueError`` if empty."""
    if not chains:
        raise ValueError("a tree needs a chain")
    ids: list[Ints] = []
    positions: list[Index] = []
    where: list[Index] = []
    size = 0
    path = np.zeros(0, dtype=np.int64)
    for i, chain in enumerate(chains):
        shared = common_prefix(chains[i - 1], chain) if i else 0
        new = len(chain) - shared
        ids.append(chain[shared:])
        positions.append(np.arange(shared, len(chain), dtype=np.int64))
        path = np.concatenate([path[:shared], np.arange(size, size + new, dtype=np.int64)])
        where.append(path)
        size += new
    ends = np.zeros(size, dtype=np.int64)
    for nodes in where:  # a node's subtree ends after the last chain through it, and that one is written last
        ends[nodes] = nodes[-1] + 1 if len(nodes) else 0
    return Tree(np.concatenate(ids), np.concatenate(positions), ends, where)


Layout = Literal["per_call", "merged", "tree", "auto"]
CPU_PAIR = 0.32
"""What a multiply-add of attention costs on a CPU, beside one of the weights: its products are the better ones
there (``make bench-trainer``).
"""
CPU_MASKED = 1.7
"""What a pair costs there under a mask, of which none is left out; without one half of them are."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Relative cost of computing a token, and of a (query, key) pair of attention, by the model's shape.

    ``dense``: attention is computed over all pairs of a tree row and its mask is read (CPU); else only over
    ancestors (FlexAttention).
    """

    token: float = 1.0
    pair: float = 0.0
    dense: bool = True

    def row(self, tokens: int, pairs: int, *, plain: bool) -> float:
        square = tokens * tokens
        if self.dense:
            return self.token * tokens + self.pair * CPU_PAIR * square * (0.5 if plain else CPU_MASKED)
        return self.token * tokens + self.pair * (square / 2 if plain else pairs)

    @classmethod
    def of_shape(cls, *, weights: int, heads: int, head_size: int, layers: int, dense: bool) -> Self:
        """Multiply-adds of a token's ``weights`` against those of a (query, key) pair."""
        return cls(float(weights), 2.0 * heads * head_size * layers, dense)


@dataclass(slots=True, eq=False)
class Row:
    """A run of neighbouring chains: a tree, or a plain sequence. ``size``: its tokens."""

    chains: list[int]
    size: int = 0
    pairs: int = 0
    tree: Tree | None = field(default=None)


def cut(chains: Sequence[Ints], layout: Layout, costs: Costs, budget: int) -> list[list[int]]:
    """Runs of neighbouring chains. Greedy: a chain joins the run before it if that is cheaper and fits the budget."""
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


def side_by_side(rows: list[Row], budget: int) -> list[list[list[Row]]]:
    """Rows of one kind, longest first, each a lane of its own, into micro-batches of ≤ ``budget`` padded tokens."""
    out: list[list[list[Row]]] = []
    for row in sorted(rows, key=lambda r: -r.size):
        if out and out[-1][0][0].size * (len(out[-1]) + 1) <= budget:
            out[-1].append([row])
        else:
            out.append([[row]])
    return out


def end_to_end(rows: list[Row], budget: int) -> list[list[list[Row]]]:
    """Rows of any kind in one lane a micro-batch, at most ``budget`` tokens: first fit, longest first. A longer row
    has a lane of its own.
    """
    lanes: list[list[Row]] = []
    free: list[int] = []
    for row in sorted(rows, key=lambda r: -r.size):
        at = next((i for i, room in enumerate(free) if room >= row.size), None)
        if at is None:
            lanes.append([row])
            free.append(budget - row.size)
        else:
            lanes[at].append(row)
            free[at] -= row.size
    return [[lane] for lane in lanes]


LANE_TOKENS = 16_384
"""Tokens of a lane on a GPU, whatever the budget: a longer row stands alone, and others' lanes stay as they are."""
BLOCK_TOKENS = 128
"""Tokens of a block of attention on a GPU: rows' lengths are multiples of it there."""
TILE_TOKENS = 512
"""Rows' lengths that are compiled apart are multiples of it: products with 16,000 rows take an H200 6 % longer than
with 16,384, and with 14,848 a tenth less time.
"""


def in_tiles(tokens: int) -> int:
    """The shortest length that holds ``tokens`` and pays on a GPU."""
    return -(-tokens // TILE_TOKENS) * TILE_TOKENS


def forest_width(tokens: int, budget: int, compiled: Collection[int] = ()) -> int:
    """The length that a forest of ``tokens`` is padded to: few lengths, for each is a compilation (a power of two
    from 1,024, then quarters of a lane, and beyond it quarters of a power of two). Or a shorter one that is
    ``compiled`` already.
    """
    quarter = max(1024, -(-min(budget, LANE_TOKENS) // 4 // BLOCK_TOKENS) * BLOCK_TOKENS)
    if tokens > LANE_TOKENS:
        quarter = 2 ** ((tokens - 1).bit_length() - 3)
    width = 1024
    while width < tokens and width < quarter:
        width *= 2
    common = width if width >= tokens and width <= quarter else -(-tokens // quarter) * quarter
    return min([common, *(w for w in compiled if w >= tokens)])


@dataclass(slots=True, eq=False)
class Slots:
    """The scored tokens of a micro-batch, flat (S). ``source_S`` indexes its rows, the others the samples."""

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
    """Every trained token of the batch, flat (T): what the loss needs of it. ``unit_T`` is its episode's row in the
    loss, ``column_T`` its place there.
    """

    sample_T: Index
    target_T: Index
    behavior_logprobs_T: NDArray[np.float32]
    temperature_T: NDArray[np.float32]
    advantage_T: NDArray[np.float32]
    unit_T: Index
    column_T: Index
    units: int
    filter_T3: NDArray[np.float32] | None = None
    """min_p, top_k and top_p. None: all are neutral."""
    hinted_T: NDArray[np.bool_] | None = None
    """Tokens of replies about which a user said something. None: there are none."""

    @property
    def tokens(self) -> int:
        return len(self.target_T)


@dataclass(slots=True, eq=False)
class Plan:
    micro: list[MicroBatch]
    scored: Scored
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


def score(samples: Sequence[Sample]) -> tuple[Scored, list[int]]:
    """The trained tokens of ``samples``, and where each sample's begin. Units are episodes: all that one run said."""
    units: dict[str, int] = {}
    filled: dict[int, int] = {}
    starts, total = [0] * len(samples), 0
    parts: list[tuple[Any, ...]] = []
    filters: list[tuple[float, float, float]] = []
    for i, s in enumerate(samples):
        starts[i] = total
        if not s.trainable:
            continue
        n = len(s.completion_C)
        unit = units.setdefault(s.run, len(units))
        column = filled.get(unit, 0)
        filled[unit] = column + n
        total += n
        filters.append(s.filter or NO_FILTER)
        place = np.arange(column, column + n)
        hinted = s.hinted_P is not None
        parts.append((i, s.completion_C, s.logprobs_C, s.temperature, s.advantage, unit, place, hinted))
    lengths = [len(p[1]) for p in parts]

    def each(index: int, dtype: type) -> NDArray[Any]:
        return np.asarray(np.repeat(np.array([p[index] for p in parts], dtype=dtype), lengths))

    def join(index: int, dtype: type) -> NDArray[Any]:
        found: NDArray[Any] = np.concatenate([np.zeros(0, dtype=dtype), *(p[index] for p in parts)]).astype(dtype)
        return found

    scored = Scored(
        each(0, np.int64),
        join(1, np.int64),
        join(2, np.float32),
        each(3, np.float32),
        each(4, np.float32),
        each(5, np.int64),
        join(6, np.int64),
        len(units),
        np.repeat(np.array(filters, np.float32), lengths, axis=0) if set(filters) - {NO_FILTER} else None,
        each(7, np.bool_) if any(p[7] for p in parts) else None,
    )
    return scored, starts


def _micro(
    lanes: Sequence[Sequence[Row]],
    chains: Sequence[Chain],
    samples: Sequence[Sample],
    starts: Sequence[int],
    width: int,
    *,
    masked: bool = False,
) -> MicroBatch:
    """A lane is a row of the input, ``width`` tokens long: one of our rows or several end to end (a forest, which a
    mask keeps apart).

    Padding stands behind: no real token sees it, and it sees itself alone.
    """
    plain = not masked and all(len(lane) == 1 and lane[0].tree is None for lane in lanes)
    shape = (len(lanes), width)
    ids, positions = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    ends = np.tile(np.arange(1, width + 1, dtype=np.int64), (len(lanes), 1))
    source, target, token = [], [], []
    for r, lane in enumerate(lanes):
        at = 0
        for row in lane:
            place = slice(at, at + row.size)
            ids[r, place] = row.tree.ids_N if row.tree else chains[row.chains[0]].ids_L
            positions[r, place] = row.tree.positions_N if row.tree else np.arange(row.size)
            ends[r, place] = at + (row.tree.ends_N if row.tree else row.size)
            for k, c in enumerate(row.chains):
                for i in chains[c].samples:
                    s = samples[i]
                    n, first = len(s.completion_C), len(s.prompt_P) - 1
                    where = np.arange(first, first + n)
                    source.append(r * width + at + (row.tree.where[k][where] if row.tree else where))
                    target.append(s.completion_C)
                    token.append(np.arange(starts[i], starts[i] + n))
            at += row.size
        positions[r, at:] = np.arange(width - at)
    slots = Slots(*(np.concatenate(x).astype(np.int64) for x in (source, target, token)))
    tokens = sum(row.size for lane in lanes for row in lane)
    return MicroBatch(ids, None if plain else positions, None if plain else ends, tokens, slots)


def refuse_long(samples: Sequence[Sample], budget: int) -> int:
    """Mark samples that are too long even alone (``too_long``). → How many: nothing is cut silently."""
    long = [s for s in samples if s.trainable and len(s.prompt_P) + len(s.completion_C) - 1 > budget]
    for s in long:
        s.trainable, s.reason = False, "too_long"
    return len(long)


def make_plan(
    samples: Sequence[Sample],
    *,
    layout: Layout = "auto",
    budget: int = 16_384,
    micro: int | None = None,
    costs: Costs | None = None,
    multiple: int = 1,
    forest: bool = False,
    compiled: Collection[int] = (),
) -> Plan:
    """Lay out the trainable ones of ``samples``. ``budget``: most tokens of a row; ``micro``: of a micro-batch
    (default: the budget).

    Rows' lengths are multiples of ``multiple`` (a GPU's blocks). ``forest``: a micro-batch is one lane of rows end
    to end, of a ``forest_width`` (``compiled``: lengths that may serve besides); for FlexAttention, which computes
    nothing between them.
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
        rows.append(Row(run, tree.size if tree else len(ids[run[0]]), tree=tree))
    if forest:
        filled = end_to_end(rows, min(each, LANE_TOKENS))
    else:
        filled = side_by_side([r for r in rows if r.tree is None], each) + side_by_side(
            [r for r in rows if r.tree], each
        )
    out = []
    for lanes in filled:
        longest = max(sum(r.size for r in lane) for lane in lanes)
        width = forest_width(longest, each, compiled) if forest else -(-longest // multiple) * multiple
        out.append(_micro(lanes, chains, samples, starts, width, masked=forest))
    alone = sum(len(s.prompt_P) + len(s.completion_C) - 1 for s in samples if s.trainable)
    merged = sum(map(len, ids)) if layout != "per_call" else sum(len(c.ids_L) for c in merge_chains(samples))
    shared = sum(common_prefix(a, b) for a, b in itertools.pairwise(ids))
    tree_tokens = sum(map(len, ids)) - shared
    return Plan(out, scored, alone, merged, tree_tokens, too_long)
