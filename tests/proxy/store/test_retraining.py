"""Conformance: stored groups that are trained on again."""

from __future__ import annotations

import pytest
from tests.support.records import NOW, call, group, mutation, reward, rules, want
from tests.support.store_writes import members_of, take_ack

from slipstream.contract import BatchAck, GroupLeaseIn
from slipstream_proxy.store import open_store
from slipstream_proxy.store.values import EpisodeFilter

FAR = ({"m@1": 1}, 9)
"""The versions, and that the live one is the ninth: what the base sampled is too old."""


def ask(store, epochs=1, now=NOW + 50, **which):
    """As ``POST training/again`` does. → Groups that are trained on again, and why the others are not."""
    groups, plan = store.batches.plan_again(store.episodes.names(EpisodeFilter(**which)), epochs)
    if groups:
        store.ingest([mutation("again", {"groups": groups, "epochs": epochs}, at=now)], {})
    return plan


def lease(store, now, **kw):
    return store.batches.lease(want(**{"max_staleness": 4, "seconds": 100, **kw}), *FAR, now)


def train(store, now, outcome="trained", **kw):
    """One batch, to its end. → Its groups' tasks; None: there was none."""
    got = lease(store, now, **kw)
    if got is None:
        return None
    assert take_ack(store, got.id, BatchAck(lease=got.lease, outcome=outcome, adapter="m@9"), now + 1)
    return sorted({row["task"] for row in got.table.to_pylist()})


def waits(store, now=NOW):
    found = store.statistics.funnel("judge", now)
    return found.again.passes, found.again.left, found.ready, found.corrected


def test_too_old_groups_get_a_second_life_with_their_own_probabilities(store):
    store.ingest([*group("t1"), *group("t2", start=NOW + 2)], {})
    assert train(store, NOW + 9) is None, "too old"
    assert store.statistics.counts(NOW)["lost"] == {"trainer": 2}
    plan = ask(store, task="t1")
    assert (plan.groups, plan.passes, plan.episodes, plan.left_out) == (1, 1, 2, {})
    got = lease(store, NOW + 60)
    rows = got.table.to_pylist()
    assert [(r["task"], r["trainable"], r["untrainable_reason"], r["staleness"]) for r in rows] == [
        ("t1", True, None, 9)
    ] * 2
    assert all(len(r["logprobs"]) == len(r["completion_ids"]) for r in rows)
    assert waits(store) == (1, 1, 0, 0), "the one that is leased is not done"
    assert take_ack(store, got.id, BatchAck(lease=got.lease, outcome="trained"), NOW + 61)
    assert waits(store) == (1, 0, 0, 0) and train(store, NOW + 99) is None


def test_what_was_trained_on_is_not_trained_on_twice_unless_asked(store):
    store.ingest(group("t1"), {})
    assert store.batches.lease(want(), {}, 0, NOW + 5) is not None
    store.release_leases("w1")
    assert train(store, NOW + 6, max_staleness=99) == ["t1"]
    assert ask(store).left_out == {"trained": 1}
    assert ask(store, epochs=3).passes == 2
    assert ask(store, epochs=3).passes == 2, "the same question again asks for nothing more"
    assert [train(store, NOW + 60 + n) for n in range(3)] == [["t1"], ["t1"], None]
    assert ask(store, epochs=3).left_out == {"trained": 1}


def test_a_corrected_reward_marks_its_group_for_it(store):
    store.ingest(group("t1"), {})
    train(store, NOW + 6, max_staleness=99)
    store.ingest([reward("t1-0", 7.0)], {})
    assert waits(store)[3] == 1
    assert store.statistics.counts(NOW)["lost"] == {}
    plan = ask(store)
    assert (plan.groups, plan.corrected) == (1, 1) and waits(store)[3] == 0
    got = lease(store, NOW + 60)
    assert sorted(set(got.table["reward"].to_pylist())) == [2.0, 7.0]
    take_ack(store, got.id, BatchAck(lease=got.lease, outcome="trained"), NOW + 61)
    store.ingest([reward("t1-0", 1.0)], {})
    assert waits(store)[3] == 0, "the rewards of the first time: trained on"


def test_another_reward_changes_nothing_of_why_a_group_taught_nothing(store):
    runs = [x for n in range(2) for x in (call(f"a{n}", done=True, task="t1"), reward(f"a{n}", 1.0))]
    store.ingest(runs, {})
    train(store, NOW + 6, max_staleness=99)
    assert store.statistics.counts(NOW)["lost"] == {"equal_rewards": 1}
    store.ingest([reward("a0", 3.0, name="style")], {})
    assert store.statistics.counts(NOW)["lost"] == {"equal_rewards": 1} and waits(store)[3] == 0
    store.ingest([reward("a0", 0.0)], {})
    assert store.statistics.counts(NOW)["lost"] == {} and waits(store)[3] == 1


def test_newer_groups_go_first_and_epochs_go_round(store):
    store.ingest([*group("t1"), *group("t2", start=NOW + 2)], {})
    train(store, NOW + 9)
    ask(store, epochs=2)
    store.ingest(group("new", start=NOW + 55, adapter="m@9"), {})
    versions = ({"m@9": 9}, 9)
    one = {"max_groups": 1, "max_staleness": 4, "seconds": 100}
    tasks = []
    for n in range(6):
        got = store.batches.lease(want(**one), *versions, NOW + 60 + n)
        if got is not None:
            tasks.append(got.table["task"].to_pylist()[0])
            take_ack(store, got.id, BatchAck(lease=got.lease, outcome="trained"), NOW + 60.5 + n)
    assert tasks == ["new", "t1", "t2", "t1", "t2"]


def test_only_stored_groups_are_handed_out_if_only_they_are_asked_for(store):
    store.ingest([*group("t1"), *group("t2", start=NOW + 2)], {})
    assert lease(store, NOW + 9, stored=True, max_staleness=99) is None
    ask(store, task="t2")
    assert train(store, NOW + 60, stored=True) == ["t2"]


def test_a_killed_trainer_s_batch_comes_back_once(store):
    store.ingest(group("t1"), {})
    train(store, NOW + 9)
    ask(store)
    first = lease(store, NOW + 60, seconds=10)
    again = lease(store, NOW + 80)
    assert not take_ack(store, first.id, BatchAck(lease=first.lease, outcome="trained"), NOW + 81), "another has it"
    for _ in range(2):
        assert take_ack(store, again.id, BatchAck(lease=again.lease, outcome="trained"), NOW + 82)
    assert waits(store) == (1, 0, 0, 0) and train(store, NOW + 99) is None


def test_what_the_guards_refuse_is_not_tried_for_ever(store):
    store.ingest(group("t1"), {})
    train(store, NOW + 9)
    ask(store, epochs=5)
    assert train(store, NOW + 60, outcome="skipped") == ["t1"]
    assert waits(store)[1] == 0 and train(store, NOW + 70) is None


def test_it_can_be_stopped(store):
    store.ingest([*group("t1"), *group("t2", start=NOW + 2)], {})
    train(store, NOW + 6, max_staleness=99, max_groups=1)
    ask(store, epochs=9)
    store.ingest([mutation("again", {"groups": [], "epochs": 0})], {})
    assert waits(store)[1] == 0
    assert train(store, NOW + 70, max_staleness=99) == ["t2"], "it was never trained on, and waits as before"
    assert train(store, NOW + 80, max_staleness=99) is None


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (group("t1", split="eval"), "eval"),
        (group("t1", value=None), "waiting_reward"),
        ([x for n in range(2) for x in (call(f"a{n}", done=True, task="t1"), reward(f"a{n}", 1.0))], "equal_rewards"),
        (group("t1", 1), "forming"),
    ],
)
def test_what_cannot_teach_says_why(store, records, why):
    store.ingest(records, {})
    plan = ask(store)
    assert (plan.groups, plan.left_out) == (0, {why: 1})


def test_what_a_bad_version_sampled_is_left_out(store):
    store.ingest(group("t1", adapter="m@1"), {})
    store.batches.drop_adapter("m@1")
    assert ask(store).left_out == {"rolled_back": 1}


def test_the_judge_still_scores_what_is_to_be_trained_on_again(opened):
    store = opened(weights={"reward": 1.0})
    store.ingest(group("t1"), {})
    train(store, NOW + 9)
    ask(store)
    got = store.judging.lease(GroupLeaseIn(worker="j", names=["strict"]), NOW + 60)
    assert got is not None and train(store, NOW + 61) == ["t1"]


def test_a_store_that_is_filled_again_goes_on_where_it_was(store, tmp_path):
    calls = [*group("t1"), *group("t2", start=NOW + 2)]
    store.ingest(calls, {})
    train(store, NOW + 9)
    groups, _ = store.batches.plan_again(store.episodes.names(EpisodeFilter()), 2)
    asked = mutation("again", {"groups": groups, "epochs": 2}, at=NOW + 50)
    store.ingest([asked], {})
    got = lease(store, NOW + 60)
    data = {"batch": got.id, "ack": BatchAck(lease=got.lease, outcome="trained").model_dump(mode="json")}
    acked = mutation("ack", data | {"members": members_of(store, got.id)}, at=NOW + 61)
    store.ingest([acked], {})
    filled = open_store(f"duckdb:///{tmp_path}/filled.duckdb", rules())
    filled.ingest([*calls, asked, acked], {})
    assert waits(filled)[1:] == waits(store)[1:] == (2, 0, 0), "one pass of each is done"
    filled.close()
