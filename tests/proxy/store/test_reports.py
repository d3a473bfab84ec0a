"""Conformance: what people look at agrees with what the work is done in."""

from __future__ import annotations

from tests.support.records import NOW, group, want
from tests.support.store_writes import take_ack

from slipstream.contract import BatchAck
from slipstream_proxy.store.read.curves import LearningFilter
from slipstream_proxy.store.read.groups import GroupFilter


def test_a_trained_group_is_the_same_in_each_report(store):
    store.ingest(group("t1", adapter="m@1"), {})
    batch = store.batches.lease(want(), {"m@1": 1}, 1, NOW + 9)
    take_ack(store, batch.id, BatchAck(lease=batch.lease, outcome="trained", adapter="m@2", step=1), NOW + 9)
    (shown,) = store.reports.groups.page(GroupFilter()).groups
    assert (shown.state, shown.batch, shown.adapter, shown.rewarded) == ("trained", batch.id, "m@2", 2)
    detail = store.reports.groups.batch(batch.id)
    assert detail.groups == [shown.id]
    assert {e.episode for e in detail.episodes} == {"t1-0", "t1-1"}
    points = store.reports.learning.read(LearningFilter(model="m")).points
    assert sum(p.n for p in points) == 2
    one = store.episodes.get("-", "t1-0").call_list[0]
    assert store.reports.tokens.get("-", one.id) is not None
    assert store.reports.tokens.get("-", "unknown") is None
