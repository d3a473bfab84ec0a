"""Which chains share a tree, and which rows share a micro-batch: by what computing them costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from slipstream_trainer.rows import Ints
from slipstream_trainer.tree import Tree, common_prefix

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
    """Rows of any kind in one lane a micro-batch, at most ``budget`` tokens: first fit, longest first."""
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


def forest_width(tokens: int, budget: int) -> int:
    """The length that a forest of ``tokens`` is padded to: few lengths, for each is a compilation (a power of two
    from 1,024, then quarters of the budget).
    """
    quarter = max(1024, -(-budget // 4 // 128) * 128)
    width = 1024
    while width < tokens and width < quarter:
        width *= 2
    return width if width >= tokens and width <= quarter else -(-tokens // quarter) * quarter
