"""Conformance: groups and batches as people look at them, linked both ways."""

from __future__ import annotations

import pytest
from tests.support.records import NOW, call, group, mutation, want
from tests.support.store_writes import take_ack, take_scores

from slipstream.contract import BatchAck, GroupLeaseIn, Score, ScoresIn
from slipstream_proxy.store.read.groups import BatchFilter, GroupFilter


@pytest.fixture
def filled(store):
    """``t1`` is trained in step 3 into m@1, ``t2`` waits for its rewards, ``t3`` is another key's."""
    store.ingest(group("t1"), {})
    batch = store.batches.lease(want(), {}, 0, NOW + 9)
    ack = BatchAck(lease=batch.lease, outcome="trained", adapter="m@1", step=3, advantages={"t1-0": -1.0, "t1-1": 1.0})
    take_ack(store, batch.id, ack, NOW + 9)
    store.ingest([*group("t2", value=None, start=NOW + 20), *group("t3", start=NOW + 40, key="k2")], {})
    store.batch = batch.id
    return store


def tasks(store, **wanted) -> list[str]:
    return [g.task for g in store.reports.groups.page(GroupFilter(**wanted)).groups]


def test_lists(filled):
    assert tasks(filled) == ["t3", "t2", "t1"]
    for wanted, found in (
        ({"key": "k2"}, ["t3"]), ({"task": "t2"}, ["t2"]), ({"state": "trained"}, ["t1"]), ({"batch": filled.batch}, ["t1"]),
        ({"adapter": "m@1"}, ["t1"]), ({"adapter": "m"}, ["t3", "t2", "t1"]), ({"split": "eval"}, []), ({"model": "x"}, []),
        ({"kind": "task"}, ["t3", "t2", "t1"]),
    ):  # fmt: skip
        assert tasks(filled, **wanted) == found, wanted
    t1 = filled.reports.groups.page(GroupFilter(task="t1")).groups[0]
    assert (t1.episodes, t1.rewarded, t1.mean, t1.low, t1.high) == (2, 2, 1.5, 1.0, 2.0)
    assert (t1.batch, t1.step, t1.adapter) == (filled.batch, 3, "m@1")


def test_pages(store):
    for i in range(5):
        store.ingest(group(f"t{i}", start=NOW + 10 * i), {})
    seen, cursor = [], None
    while True:
        page = store.reports.groups.page(GroupFilter(limit=2, cursor=cursor))
        seen.append([g.task for g in page.groups])
        if (cursor := page.next) is None:
            break
    assert seen == [["t4", "t3"], ["t2", "t1"], ["t0"]]
    with pytest.raises(ValueError):
        store.reports.groups.page(GroupFilter(cursor="!!nonsense"))
    with pytest.raises(ValueError):
        store.reports.groups.batch_page(BatchFilter(cursor="!!nonsense"))


def test_one_group_with_runs_advantages_and_batches(filled):
    (row,) = filled.reports.groups.page(GroupFilter(task="t1")).groups
    found = filled.reports.groups.get(None, row.id)
    assert [(r.episode.id, r.trained_reward, r.advantage) for r in found.runs] == [
        ("t1-0", 1.0, -1.0),
        ("t1-1", 2.0, 1.0),
    ]
    assert [(b.id, b.state, b.step, b.adapter) for b in found.batches] == [(filled.batch, "trained", 3, "m@1")]
    assert filled.reports.groups.get("k2", row.id) is None
    assert filled.reports.groups.get("-", row.id).id == row.id
    assert filled.reports.groups.get(None, "nothing") is None


def test_the_way_back_from_an_adapter_to_its_groups(filled):
    page = filled.reports.groups.batch_page(BatchFilter(adapter="m@1"))
    assert [b.id for b in page.batches] == [filled.batch]
    assert filled.reports.groups.batch_page(BatchFilter(step=4)).batches == []
    batch = filled.reports.groups.batch(filled.batch)
    assert [(e.episode, e.reward, e.advantage) for e in batch.episodes] == [("t1-0", 1.0, -1.0), ("t1-1", 2.0, 1.0)]
    assert [filled.reports.groups.get(None, g).task for g in batch.groups] == ["t1"]
    assert filled.reports.groups.batch("nothing") is None


def test_a_judgement_has_its_reasons_and_votes(store):
    store.ingest([call("a", done=True), call("b", at=NOW + 1, done=True)], {})
    lease = store.judging.lease(GroupLeaseIn(worker="j"), NOW + 5)
    scores = [
        Score(episode=name, value=v, reason=f"because {name}", values=[v, v + 0.5], meta={"model": "x"})
        for name, v in (("a", 0.25), ("b", 0.75))
    ]
    assert take_scores(store, lease.groups[0].id, ScoresIn(lease=lease.lease, scores=scores), NOW + 6)
    found = store.reports.groups.get(None, lease.groups[0].id)
    first = found.runs[0].judgements[0]
    assert (first.value, first.reason, first.votes, first.meta) == (0.25, "because a", [0.25, 0.75], {"model": "x"})


def test_what_is_forgotten_is_no_run_any_more(filled):
    (row,) = filled.reports.groups.page(GroupFilter(task="t1")).groups
    filled.ingest([mutation("delete", {"key": "-", "episode": "t1-0"})], {})
    assert [r.episode.id for r in filled.reports.groups.get(None, row.id).runs] == ["t1-1"]
    assert [e.episode for e in filled.reports.groups.batch(filled.batch).episodes] == ["t1-1"]


def test_the_gap_that_the_trainer_told_of_a_step(filled):
    for step, gap in ((3, 0.5), (33, 0.9)):
        data = {"kind": "step", "data": {"step": step, "logprob_gap": gap, "logprob_gap_max": 2 * gap}}
        filled.ingest([mutation("event", data)], {})
    assert filled.reports.groups.gap(3) == (0.5, 1.0)
    assert filled.reports.groups.gap(4) == (None, None)
