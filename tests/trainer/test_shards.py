"""What a sharded base asks of a plan; that its gradients are right is in ``test_process_group.py``."""

from __future__ import annotations

import pytest
from tests.support.tiny import conversation, make_config

from slipstream.errors import StartError
from slipstream_trainer.algorithm.advantage import assign
from slipstream_trainer.batch.layout import make_plan
from slipstream_trainer.model.shards import check_sharding, even, looked_at


def test_every_process_computes_equally_often() -> None:
    samples = conversation(3, groups=3, episodes=3)
    assign(samples, "std")
    plan = make_plan(samples, layout="merged", micro=60)
    before = len(plan.micro)
    for processes in (1, 2, 3, 4):
        found = even(make_plan(samples, layout="merged", micro=60), processes).micro
        assert len(found) % processes == 0 and len(found) - before < processes
        assert all(not len(m.slots.token_S) and not m.tokens for m in found[before:])
    assert looked_at(plan.micro, 2, 0) == 1 and looked_at(plan.micro, 2, 10**9) == -(-before // 2)


def test_what_cannot_be_sharded_is_refused(tiny, tmp_path) -> None:
    with pytest.raises(StartError, match="several processes"):
        check_sharding(make_config(tiny, tmp_path, sharding="fsdp2"), 1)
    with pytest.raises(StartError, match="unquantised"):
        check_sharding(make_config(tiny, tmp_path, sharding="fsdp2", quantize="4bit"), 2)
    check_sharding(make_config(tiny, tmp_path, sharding="fsdp2"), 2)
    check_sharding(make_config(tiny, tmp_path), 1)
