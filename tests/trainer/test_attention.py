from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream_trainer.model.compute import block_mask, dense_mask, tree_mask

ENDS = torch.tensor([[4, 3, 3, 4, 5]])  # 0 → (1 → 2), 3; and a padded place
SEES = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [0, 0, 0, 0, 1]]


def test_a_node_sees_itself_and_its_ancestors() -> None:
    assert dense_mask(ENDS)[0, 0].long().tolist() == SEES
    assert tree_mask(ENDS, "sdpa").dtype == torch.bool  # type: ignore[union-attr]


def test_a_mask_that_is_added_says_the_same() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 5, 4)
    attend = torch.nn.functional.scaled_dot_product_attention
    added = tree_mask(ENDS, "sdpa", torch.float32)
    assert isinstance(added, torch.Tensor)
    assert torch.equal(attend(q, k, v, attn_mask=added), attend(q, k, v, attn_mask=dense_mask(ENDS)))


def test_the_block_mask_says_the_same() -> None:
    found = block_mask(ENDS)
    q, k = torch.meshgrid(torch.arange(5), torch.arange(5), indexing="ij")
    assert found.mask_mod(torch.tensor(0), torch.tensor(0), q, k).long().tolist() == SEES


@pytest.mark.parametrize("seed", range(6))
def test_the_block_mask_is_the_one_that_torch_makes_of_the_function(seed: int) -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    random = np.random.default_rng(seed)
    n = int(random.integers(1, 1100))
    ends = torch.tensor([random_ends(random, n), [n] * n])
    found = block_mask(ends)
    made = create_block_mask(found.mask_mod, 2, None, n, n, device="cpu")
    assert (found.seq_lengths, found.shape) == (made.seq_lengths, made.shape)
    for kind in ("kv", "full_kv", "q", "full_q"):
        counts, which = (getattr(made, f"{kind}_{what}") for what in ("num_blocks", "indices"))
        assert torch.equal(getattr(found, f"{kind}_num_blocks"), counts)
        counted = torch.arange(which.shape[-1]) < counts[..., None]
        assert torch.equal(getattr(found, f"{kind}_indices")[counted], which[counted])


def random_ends(random: np.random.Generator, n: int) -> list[int]:
    """Trees end to end, with branches in branches."""
    ends = [0] * n

    def fill(start: int, end: int) -> None:
        while start < end:
            size = int(random.integers(1, end - start + 1))
            stem = int(random.integers(1, size + 1))
            ends[start : start + stem] = [start + size] * stem
            fill(start + stem, start + size)
            start += size

    fill(0, n)
    return ends
