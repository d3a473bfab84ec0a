"""Prefix trees: chains that begin alike share the tokens they begin with.

Nodes stand in depth-first pre-order, so that a node's subtree is the range from it to its ``end``, and "key k is an
ancestor of query q (or q itself)" is ``k <= q < end[k]``: the whole attention mask is one number a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream_trainer.rows import Ints

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
