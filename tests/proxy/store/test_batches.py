"""Conformance: the trainer's leases."""

from __future__ import annotations

from slipstream.contract import BATCH_COLUMNS, BatchAck
from tests.proxy.store.helpers import NOW, call, group, reward, want


def ack(batch, outcome="trained", **kw):
    return BatchAck(lease=batch.lease, outcome=outcome, **kw)


def test_a_batch_has_the_sampled_tokens_of_each_choice(store):
    two = [({"role": "assistant", "content": "a"}, [4], [-0.5]), ({"role": "assistant", "content": "b"}, [5, 6], [-1.0, -2.0])]
    store.ingest(
        [
            call("a", choices=two, adapter="m@3"), call("a", at=NOW + 1, prompt=[1, 2, 3, 4, 9], untrainable="temperature 0", adapter="m@3"),
            call("a", at=NOW + 2, outcome="aborted"), call("a", at=NOW + 3, done=True), reward("a", 0.5), *group("t1", 1, start=NOW + 9),
        ],
        {},
    )  # fmt: skip
    got = store.lease_batch(want(), {"m@3": 3}, 4, NOW + 20)
    assert tuple(got.table.column_names) == BATCH_COLUMNS
    rows = got.table.to_pylist()
    assert [(r["episode"], r["number"], r["choice"]) for r in rows] == [("a", 0, 0), ("a", 0, 1), ("a", 1, 0), ("a", 3, 0), ("t1-0", 0, 0)]
    assert [r["completion_ids"] for r in rows[:2]] == [[4], [5, 6]]
    assert [r["logprobs"] for r in rows[:2]] == [[-0.5], [-1.0, -2.0]]
    assert rows[2]["prompt_ids"] == [1, 2, 3, 4, 9]
    assert [(r["trainable"], r["untrainable_reason"]) for r in rows[1:3]] == [(True, None), (False, "temperature 0")]
    assert [(r["adapter"], r["staleness"]) for r in rows] == [("m@3", 1)] * 3 + [("m", 4)] * 2
    assert [r["reward"] for r in rows] == [0.5] * 4 + [1.0]
    assert {(r["kind"], r["task"], r["group"]) for r in rows} == {("task", "t1", rows[0]["group"])}


def test_trained_once_or_back(store):
    store.ingest(group("t1"), {})
    got = store.lease_batch(want(seconds=10), {}, 0, NOW + 5)
    assert store.lease_batch(want(), {}, 0, NOW + 6) is None
    assert store.ack_batch(got.id, ack(got, "released"), NOW + 6)
    got = store.lease_batch(want(seconds=10), {}, 0, NOW + 7)
    assert store.ack_batch(got.id, ack(got, adapter="m@1", advantages={"t1-0": -1.0}), NOW + 8)
    assert store.ack_batch(got.id, ack(got), NOW + 8)
    assert not store.ack_batch(got.id, ack(got, "skipped"), NOW + 8)
    assert store.lease_batch(want(), {}, 0, NOW + 99) is None
    detail = store.episode("-", "t1-0")
    assert (detail.advantage, detail.batches, detail.trained_adapters) == (-1.0, [got.id], ["m@1"])


def test_a_lease_that_ran_out(store):
    store.ingest(group("t1"), {})
    one = store.lease_batch(want(seconds=10), {}, 0, NOW + 5)
    two = store.lease_batch(want(seconds=10), {}, 0, NOW + 30)
    assert two is not None
    assert not store.ack_batch(one.id, ack(one), NOW + 31)
    store.sweep(NOW + 60)
    assert store.ack_batch(two.id, ack(two), NOW + 61), "nobody else has it"
    assert store.counts(NOW)["groups"] == {"trained": 1}


def test_groups_wait_for_number_or_time(store):
    store.ingest([*group("t1"), *group("t2", start=NOW + 2)], {})
    assert store.lease_batch(want(min_groups=3, max_wait=100), {}, 0, NOW + 50) is None
    assert store.lease_batch(want(min_groups=3, max_wait=100), {}, 0, NOW + 200) is not None
