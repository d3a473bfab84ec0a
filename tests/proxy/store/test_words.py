"""What users say about runs: leased with the run, trained on once, and gone with it."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.support.records import NOW, call, done, group, mutation, new_id, reward, rules, want
from tests.support.store_writes import take_ack

from slipstream.contract import BatchAck, FeedbackIn
from slipstream_proxy.store import open_store
from slipstream_proxy.store.write.batches import BatchQueue, UserWords


def said(episode: str, text: str = "shorter", *, at: float = NOW + 2, **kw):
    given = FeedbackIn(text=text, call=kw.pop("call", None), reply=kw.pop("reply", None)).reward("user")
    return reward(episode, at=at, **given.model_dump(exclude={"key"}), **kw)


def waiting(store):
    teaching = store.statistics.funnel("judge", NOW).teaching
    return teaching.words, teaching.early


def lease(store, now: float = NOW + 9, **kw):
    return store.batches.lease(want(**kw), {"m": 0}, 0, now)


def test_words_come_with_their_run_and_need_no_reward_and_no_rival(store):
    store.ingest(
        [call("a", id="c1"), call("a", id="c2", at=NOW + 1, done=True), call("b", done=True), said("a", call="c2")], {}
    )
    rows = lease(store).table.to_pylist()
    assert [(r["kind"], r["episode"], r["call"], r["hint"], r["reward"]) for r in rows] == [
        ("words", "a", "c2", "shorter", None)
    ]
    assert rows[0]["trainable"] and rows[0]["completion_ids"]


def test_words_about_a_run_are_about_each_of_its_calls(store):
    store.ingest([call("a", id="c1"), call("a", id="c2", at=NOW + 1, done=True), said("a", "no", reply="yes")], {})
    rows = lease(store).table.to_pylist()
    assert [r["call"] for r in rows] == ["c1", "c2"]
    assert {r["hint"] for r in rows} == {"no\n\nA better reply would have been:\n\nyes"}


def test_words_wait_for_the_end_of_the_run_and_for_its_first_call(store):
    store.ingest([said("a")], {})
    assert lease(store) is None
    store.ingest([call("a")], {})
    assert lease(store) is None
    store.ingest([done("a", at=NOW + 3)], {})
    assert lease(store).table.to_pylist()[0]["hint"] == "shorter"


def test_words_wait_for_a_trained_models_call(store):
    """What a model of others answered is never in a batch, so words about it are not said to wait for one."""
    other: dict[str, Any] = {"trained": None, "adapter": "gpt", "model": "gpt"}
    store.ingest([call("a", done=True, **other), call("b", **other), said("a"), said("b")], {})
    assert waiting(store) == (0, 0)
    store.ingest([call("b", at=NOW + 3, id="c2")], {})
    assert waiting(store) == (0, 1)
    store.ingest([done("b", at=NOW + 4)], {})
    assert {(r["episode"], r["hint"]) for r in lease(store).table.to_pylist()} == {("b", "shorter")}


def test_words_do_not_grow_old_and_are_trained_on_once(store):
    store.ingest([call("a", id="c1", done=True), said("a", id="w1")], {})
    got = store.batches.lease(want(), {"m": 0}, 99, NOW + 9)
    (row,) = got.table.to_pylist()
    assert (row["group"], row["staleness"], row["trainable"]) == ("words-w1", 99, True)
    words = {row["group"]: {row["call"]: -0.25}}
    assert take_ack(store, got.id, BatchAck(lease=got.lease, outcome="trained", adapter="m@1", words=words), NOW + 10)
    assert lease(store, NOW + 99) is None
    store.ingest([said("a", id="w1")], {})
    assert lease(store, NOW + 99) is None, "the log is read again"
    (kept,) = store.episodes.get("-", "a").rewards
    assert (kept.name, kept.reason, kept.meta) == ("words", "shorter", {"words": "shorter", "taught": {"c1": -0.25}})
    store.ingest([said("a", "and kinder", id="w2", at=NOW + 11)], {})
    assert lease(store, NOW + 99).table.to_pylist()[0]["hint"] == "and kinder"


def test_words_do_not_train_their_runs_group(store):
    """A group of runs is trained on whether or not something was said about one of them, and the other way round."""
    store.ingest([*group("t1"), said("t1-0", id="w1"), said("t1-0", id="w2"), call("x", done=True), said("x")], {})
    batches = [lease(store, NOW + 9) for _ in range(3)]
    kinds = [sorted({(r["kind"], r["episode"]) for r in got.table.to_pylist()}) for got in batches]
    assert kinds == [[("task", "t1-0"), ("task", "t1-1"), ("words", "x")], [("words", "t1-0")], [("words", "t1-0")]]
    for got in batches:
        assert take_ack(store, got.id, BatchAck(lease=got.lease, outcome="trained"), NOW + 10)
    assert lease(store, NOW + 99) is None
    store.ingest([call("a", task="t2", id="c1", done=True), said("a", id="w3")], {})
    got = lease(store)
    assert take_ack(store, got.id, BatchAck(lease=got.lease, outcome="trained"), NOW + 20)
    store.ingest([reward("a", 1), call("b", task="t2", done=True), reward("b", 0)], {})
    assert [r["hint"] for r in lease(store, NOW + 99).table.to_pylist()] == [None, None]


def test_a_store_that_is_filled_again_trains_on_no_words_twice(store, tmp_path):
    items = [call("a", task="t1", id="c1", done=True), said("a", id="w1")]
    store.ingest(items, {})
    got = lease(store)
    ack = BatchAck(lease=got.lease, outcome="trained")
    members = store.batches.takes(got.id, ack)
    acked = mutation("ack", {"batch": got.id, "ack": ack.model_dump(), "members": members}, at=NOW + 10)
    again = open_store(f"duckdb:///{tmp_path}/again.duckdb", rules())
    again.ingest([*items, acked, call("b", task="t1", done=True), reward("a", 1), reward("b", 0)], {})
    assert {r["kind"] for r in lease(again, NOW + 99).table.to_pylist()} == {"task"}
    again.close()


def test_a_few_words_wait_for_more(store):
    """One run with words is no step. Eight are as good as a group."""
    few = [x for i in range(7) for x in (call(f"a{i}", id=new_id(), done=True), said(f"a{i}"))]
    store.ingest(few, {})
    assert lease(store, NOW + 9, max_wait=60) is None
    store.ingest([call("b", done=True), said("b")], {})
    assert len({r["group"] for r in lease(store, NOW + 9, max_wait=60).table.to_pylist()}) == 8


def test_what_is_forgotten_is_not_learned(store):
    store.ingest([call("a", done=True), said("a")], {})
    store.forget([("-", "a")], NOW + 5)
    assert lease(store) is None


@pytest.mark.parametrize("meta", [{"words": 37}, {"words": "x"}, {"words": ["a"]}, {"stats": {"words": 37}}])
def test_an_agents_own_words_in_meta_mean_nothing(store, meta):
    store.ingest(
        [*group("t1"), reward("t1-0", 1, at=NOW + 3, meta=meta), reward("t1-1", 0, name="other", meta=meta)], {}
    )
    assert waiting(store) == (0, 0)
    assert {(r["kind"], r["hint"]) for r in lease(store).table.to_pylist()} == {("task", None)}


@pytest.mark.parametrize("meta", [{"words": 37}, {"words": ""}, {"stats": {"words": "x"}}])
def test_feedback_that_is_no_text_is_no_feedback(store, meta):
    store.ingest([*group("t1"), call("a", done=True), reward("a", 0, name="words", meta=meta)], {})
    assert waiting(store) == (0, 0) and {r["kind"] for r in lease(store).table.to_pylist()} == {"task"}


def test_a_group_of_which_no_batch_can_be_made_keeps_no_other_out(store, monkeypatch):
    """What waits already is read with care, too: it is left out, and the lease goes on."""
    store.ingest([*group("t1"), call("a", done=True), said("a", id="w1"), call("b", done=True), said("b", id="w2")], {})
    with store.db.write() as tx:
        tx.run("UPDATE t_rewards SET meta = ? WHERE id = 'w1'", ('{"words":37}',))
    real = BatchQueue._said
    odd = {"words-w2": UserWords(cast("str", 37), None)}
    monkeypatch.setattr(BatchQueue, "_said", staticmethod(lambda tx, groups: real(tx, groups) | odd))
    assert {r["kind"] for r in lease(store).table.to_pylist()} == {"task"}
    assert store.batches.lease(want(), {"m": 0}, 0, NOW + 9) is None


def test_a_lease_that_fails_leaves_its_groups_ready(store, monkeypatch):
    store.ingest(group("t1"), {})
    with monkeypatch.context() as m:
        m.setattr(store.batches.calls, "rows", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lease(store)
    assert lease(store).table.num_rows == 2


def test_words_of_one_run_keep_no_others_out(store):
    """Neither a run that goes on, nor one about which much was said."""
    many = [said(run, f"{i}") for i in range(90) for run in ("open", "over")]
    store.ingest([call("open", task="o"), call("over", task="p", done=True), *many], {})
    store.ingest([*group("t1", start=NOW + 3), call("a", task="q", done=True), said("a", at=NOW + 4)], {})
    teaching = store.statistics.funnel("judge", NOW).teaching
    assert (teaching.words, teaching.early, teaching.heard) == (91, 90, 2)
    rows = lease(store, max_groups=2).table.to_pylist()
    assert sorted((r["kind"], r["episode"]) for r in rows) == [
        *(("task", run) for run in ("t1-0", "t1-1")),
        *(("words", run) for run in ("a", "over")),
    ]
