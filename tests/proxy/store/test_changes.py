"""What a batch changes is collected apart from every other batch."""

from __future__ import annotations

from dataclasses import fields

from tests.support.records import NOW, call, done, reward

from slipstream_proxy.store.tables.rows import Changes


def test_nothing_is_shared_between_two_batches():
    first, second = Changes(), Changes()
    for field in fields(Changes):
        value = getattr(first, field.name)
        if field.name != "now":
            assert value is not getattr(second, field.name), field.name
            assert not value
    first.calls["2027-01-15"].append(None)
    assert "2027-01-15" not in second.calls


def test_what_one_batch_holds_is_written_as_if_it_came_one_by_one(opened, tmp_path):
    """The order within a batch counts: an episode that ends, and goes on, and is rewarded."""
    items = [
        call("a", at=NOW),
        reward("a", 0.5, at=NOW + 1),
        done("a", at=NOW + 2),
        call("b", at=NOW + 3),
        reward("b", 1.0, at=NOW + 4, idem="k"),
        reward("b", 2.0, at=NOW + 5, idem="k"),
    ]
    store = opened()
    store.ingest(items, {})
    found = {n: store.episodes.get("-", n) for n in ("a", "b")}
    assert {n: (str(e.state), e.reward, e.calls) for n, e in found.items()} == {
        "a": ("done", 0.5, 1),
        "b": ("open", 1.0, 1),
    }
