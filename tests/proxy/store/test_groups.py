"""Conformance: which episodes are compared."""

from __future__ import annotations

from typing import Any

from tests.support.records import NOW, call, done, group, reward, want


def groups_of(store, *episodes):
    return [store.episodes.get("-", e).group for e in episodes]


def test_a_full_group_is_closed_and_the_next_episode_starts_another(opened):
    store = opened(group_size=3)
    store.ingest(group("t1", 4), {})
    a, b, c, d = groups_of(store, *(f"t1-{i}" for i in range(4)))
    assert a == b == c != d
    store.ingest([call("x", done=True), call("y", done=True)], {})
    assert groups_of(store, "x", "y") == [d, d]
    assert store.statistics.counts(NOW)["groups"] == {"ready": 1, "waiting_reward": 1}


def test_one_batch_may_fill_several_groups(store):
    store.ingest(group("t1", 5), {})
    assert len(set(groups_of(store, *(f"t1-{i}" for i in range(5))))) == 3
    assert store.statistics.counts(NOW)["groups"] == {"ready": 2, "forming": 1}


def test_what_keeps_episodes_apart(store):
    kinds: list[dict[str, Any]] = [{"tags": {"explore": "temperature"}}]
    kinds += [{}, {"key": "k2"}, {"trained": "other"}, {"task": "t2"}, {"split": "eval"}]
    store.ingest([call(f"e{i}", done=True, **kw) for i, kw in enumerate(kinds)], {})
    assert store.statistics.counts(NOW)["groups"] == {"forming": 5, "eval": 1}


def test_only_done_episodes_with_a_trained_models_call(store):
    store.ingest([call("open"), call("base", done=True, trained=None)], {})
    assert groups_of(store, "open", "base") == [None, None]
    store.ingest([done("open")], {})
    assert groups_of(store, "open") != [None]


def test_ungrouped_episodes_go_by_likeness(store):
    system = {"role": "system", "content": "agent"}
    for i, first in enumerate([system, system, {"role": "system", "content": "another"}]):
        store.ingest(
            [
                call(f"e{i}", task=None, done=True, messages=[first, {"role": "user", "content": f"{i}"}]),
                reward(f"e{i}"),
            ],
            {},
        )
    a, b, c = groups_of(store, "e0", "e1", "e2")
    assert a == b != c
    got = store.batches.lease(want(), {}, 0, NOW + 9)
    assert set(got.table["kind"].to_pylist()) == {"like"}
    assert set(got.table["task"].to_pylist()) == {None}


def untagged(name, text, at=NOW):
    messages = [{"role": "system", "content": "agent"}, {"role": "user", "content": text}]
    return call(name, task=None, at=at, done=True, messages=messages)


def test_untagged_runs_of_a_task_that_comes_back_are_a_group_of_that_task(opened):
    store = opened(group_size=2)
    texts = ["play", "win", "play", "win"] * 4
    for i, text in enumerate(texts):
        store.ingest([untagged(f"e{i}", text, NOW + i), reward(f"e{i}", i, at=NOW + i)], {})
    got = store.batches.lease(want(), {}, 0, NOW + 99).table.to_pylist()
    same = {}
    for row in got:
        same.setdefault((row["group"], row["kind"]), set()).add(texts[int(row["episode"][1:])])
    tasks = [found for (_, kind), found in same.items() if kind == "task"]
    assert len(tasks) == 6 and all(len(found) == 1 for found in tasks)
    assert {row["episode"] for row in got if row["kind"] == "like"} == {"e0", "e1", "e2", "e3"}, "before it was known"


def test_untagged_runs_of_tasks_that_hardly_come_back_go_by_likeness(opened):
    store = opened(group_size=4)
    store.ingest([untagged(f"e{i}", f"{i % 20}", NOW + i) for i in range(80)], {})
    store.ingest([reward(f"e{i}") for i in range(80)], {})
    kinds = {row["kind"] for row in store.batches.lease(want(), {}, 0, NOW + 99).table.to_pylist()}
    assert kinds == {"like"}


def test_ungrouped_episodes_stay_alone_where_the_rules_say_so(opened):
    store = opened(ungrouped=False)
    store.ingest([call("a", task=None, done=True), call("b", task=None, done=True)], {})
    assert groups_of(store, "a", "b") == [None, None]


def test_an_old_group_of_two_is_complete(opened):
    store = opened(group_size=8, group_max_age=100)
    store.ingest([*group("t1", 2), *group("t2", 1)], {})
    store.sweep(NOW + 50)
    assert store.statistics.counts(NOW)["groups"] == {"forming": 2}
    store.sweep(NOW + 200)
    assert store.statistics.counts(NOW)["groups"] == {"forming": 1, "ready": 1}


def test_a_deleted_episode_leaves_its_group(opened):
    store = opened(group_size=2)
    store.ingest(group("t1", 1), {})
    store.forget([("-", "t1-0")], NOW)
    assert store.statistics.counts(NOW)["groups"] == {"dropped": 1}
    store.ingest([*group("t2", 2, value=None), reward("t2-0")], {})
    assert store.statistics.counts(NOW)["groups"].get("waiting_reward") == 1
    store.forget([("-", "t2-1")], NOW)
    got = store.batches.lease(want(), {}, 0, NOW + 9)
    assert got is not None, "the one that had no reward is gone"
    assert set(got.table["episode"].to_pylist()) == {"t2-0"}


def test_eval_groups_are_for_the_judge(store):
    store.ingest(group("t1", split="eval"), {})
    assert store.statistics.counts(NOW)["groups"] == {"eval": 1}
