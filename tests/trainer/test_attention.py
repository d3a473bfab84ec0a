from __future__ import annotations

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
