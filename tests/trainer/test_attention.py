from __future__ import annotations

import torch

from slipstream_trainer.attention import block_mask, dense_mask, tree_mask

ENDS = torch.tensor([[4, 3, 3, 4, 5]])  # 0 → (1 → 2), 3; and a padded place
SEES = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [0, 0, 0, 0, 1]]


def test_a_node_sees_itself_and_its_ancestors() -> None:
    assert dense_mask(ENDS)[0, 0].long().tolist() == SEES
    assert tree_mask(ENDS, "sdpa").dtype == torch.bool  # type: ignore[union-attr]


def test_the_block_mask_says_the_same() -> None:
    found = block_mask(ENDS)
    q, k = torch.meshgrid(torch.arange(5), torch.arange(5), indexing="ij")
    assert found.mask_mod(torch.tensor(0), torch.tensor(0), q, k).long().tolist() == SEES
