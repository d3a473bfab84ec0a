"""Conformance: what is stored is known again after a restart, wherever its id sorts."""

from __future__ import annotations

from tests.support.records import NOW, call, done, reward


def test_ids_of_before_are_known_after_opening_again(opened):
    items = [call("a", id=f"x{i}") for i in (5, 1, 9)] + [reward("a", id="m5"), reward("a", id="m1")]
    first = opened()
    first.ingest(items, {})
    first.close()
    second = opened()
    second.ingest([*items, call("a", id="x3"), call("a", id="x99"), reward("a", id="m3")], {})
    second.ingest([call("a", id="x3"), call("a", id="x99"), reward("a", id="m3")], {})
    found = second.episodes.get("-", "a")
    assert [c.id for c in found.call_list] == ["x5", "x1", "x9", "x3", "x99"]
    assert len(found.rewards) == 3


def test_after_a_batch_that_failed_nothing_of_it_is_remembered(store):
    one, two = call("a", prompt=[1, 2]), call("a", prompt=[1, 2, 7, 8, 9], at=NOW + 1)
    broken = done("a")
    broken.op = "nonsense"
    for batch in ([one, broken], [one]):
        try:
            store.ingest(batch, {})
        except ValueError:
            assert store.episodes.get("-", "a") is None
    store.ingest([two], {})
    got = store.episodes.get("-", "a", tokens=True).call_list
    assert [(c.number, c.prompt_ids) for c in got] == [(0, [1, 2]), (1, [1, 2, 7, 8, 9])]


def test_an_orphans_reward_is_known_after_opening_again(opened):
    first = opened()
    first.ingest([reward("late", 4)], {})
    first.close()
    second = opened()
    second.ingest([call("late")], {})
    assert second.episodes.get("-", "late").reward == 4
