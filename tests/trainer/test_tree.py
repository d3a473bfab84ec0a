from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_trainer.batch.layout import common_prefix, pack_tree


def sequences(parts: list[list[int]]) -> list[np.ndarray]:
    return sorted({tuple(p): np.array(p, dtype=np.int32) for p in parts}.values(), key=lambda a: a.tobytes())


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=10))
def test_each_node_sees_its_own_past_and_nothing_else(parts) -> None:
    chains = sequences(parts)
    tree = pack_tree(chains)
    assert tree.size == len({tuple(c[: i + 1].tolist()) for c in chains for i in range(len(c))})
    q, k = np.indices((tree.size, tree.size))
    sees = (k <= q) & (q < tree.ends_N[None, :])
    for chain, nodes in zip(chains, tree.where, strict=True):
        assert tree.ids_N[nodes].tolist() == chain.tolist()
        assert tree.positions_N[nodes].tolist() == list(range(len(chain)))
        for d, node in enumerate(nodes):
            assert np.flatnonzero(sees[node]).tolist() == nodes[: d + 1].tolist()
    assert (tree.positions_N + 1).sum() == sees.sum()  # what attention has to compute


def test_common_prefix() -> None:
    a = np.array([1, 2, 3], dtype=np.int32)
    assert common_prefix(a, a) == 3
    assert common_prefix(a, np.array([1, 2], dtype=np.int32)) == 2
    assert common_prefix(a, np.array([9], dtype=np.int32)) == 0


def test_nothing_is_no_tree() -> None:
    with pytest.raises(ValueError, match="needs a chain"):
        pack_tree([])
