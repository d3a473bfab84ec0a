"""Conformance: which batches and adapters an episode went into."""

from __future__ import annotations

from tests.support.records import NOW, group, mutation, want
from tests.support.store_writes import take_ack

from slipstream.contract import Adapter, AdapterState, BatchAck
from slipstream_proxy.store.learning.groups import adapters_of, lineage_of


def trained(store, task, adapter, start):
    store.ingest(group(task, start=start), {})
    batch = store.batches.lease(want(), {}, 0, start + 9)
    ack = BatchAck(lease=batch.lease, outcome="trained", adapter=adapter, advantages={f"{task}-0": -1.0})
    assert take_ack(store, batch.id, ack, start + 9)
    return batch.id


def test_an_episode_knows_its_batch_and_its_advantage(store):
    batch = trained(store, "t1", "m@1", NOW)
    with store.db.read() as tx:
        found = lineage_of(tx, ["-/t1-0", "-/t1-1", "-/unknown"])
        assert lineage_of(tx, []) == {}
    assert set(found) == {"-/t1-0", "-/t1-1"}
    (row,) = found["-/t1-0"]
    assert (row.batch, row.advantage, row.state, row.adapter) == (batch, -1.0, "trained", "m@1")


def test_a_batch_that_was_given_back_is_no_training(store):
    store.ingest(group("t1"), {})
    batch = store.batches.lease(want(), {}, 0, NOW + 9)
    take_ack(store, batch.id, BatchAck(lease=batch.lease, outcome="released"), NOW + 9)
    with store.db.read() as tx:
        assert adapters_of(tx, [batch.id]) == set()
    assert store.episodes.get("-", "t1-0").trained_adapters == []


def test_adapters_come_from_acks_and_from_the_adapters_own_lists(store):
    """A restarted trainer tells of an adapter by its list, though its ack named none."""
    first = trained(store, "t1", "m@1", NOW)
    second = trained(store, "t2", None, NOW + 100)
    later = Adapter(name="m@2", model="m", version=2, state=AdapterState.LIVE, created=NOW, path="p", batches=[second])
    store.ingest([mutation("adapter", later.model_dump(mode="json"))], {})
    with store.db.read() as tx:
        assert adapters_of(tx, [first]) == {"m@1"}
        assert adapters_of(tx, [second]) == {"m@2"}
        assert adapters_of(tx, [first, second]) == {"m@1", "m@2"}
        assert adapters_of(tx, []) == set()
