from __future__ import annotations

import pytest

from slipstream_proxy.store.store import Store


@pytest.mark.parametrize("limit", [1, 17, 1000])
def test_blocks_shrink_to_one_and_sum_up_to_the_limit(store: Store, limit: int) -> None:
    blocks = []
    while block := store.quotas.take("calls_per_day", 20_000, limit):
        blocks.append(block)
    assert sum(blocks) == limit and blocks[-1] == 1 and blocks == sorted(blocks, reverse=True)
    assert store.quotas.take("calls_per_day", 20_000, limit) == 0
    assert store.quotas.take("output_tokens_per_day", 20_000, limit) > 0
    assert store.quotas.take("calls_per_day", 20_001, limit) == blocks[0], "each day is its own"
