"""Attention masks of tree rows: dense where that is quick (CPU), FlexAttention's block mask on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


def dense_mask(ends_RN: torch.Tensor) -> torch.Tensor:
    """(R, 1, N, N), true where query q sees key k: k is q or an ancestor of it."""
    i = torch.arange(ends_RN.shape[1], device=ends_RN.device)
    return ((i[None, :] <= i[:, None])[None] & (i[None, :, None] < ends_RN[:, None, :]))[:, None]


def block_mask(ends_RN: torch.Tensor) -> BlockMask:
    """The same as FlexAttention's ``BlockMask``; nothing of size N × N is kept."""
    from torch.nn.attention.flex_attention import create_block_mask

    def ancestor(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (k <= q) & (q < ends_RN[b, k])

    rows, n = ends_RN.shape
    return create_block_mask(ancestor, rows, None, n, n, device=ends_RN.device)


def tree_mask(ends_RN: torch.Tensor, implementation: str) -> torch.Tensor | BlockMask:
    """What the model takes as ``attention_mask`` for its ``attn_implementation``."""
    return block_mask(ends_RN) if implementation == "flex_attention" else dense_mask(ends_RN)
