"""Groups counted in one pass: what a loop over their rows counts."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from slipstream_proxy.store.read.counts import count_groups, totals
from slipstream_proxy.store.tables.rows import GroupRow

STATES = ("forming", "waiting_reward", "ready", "leased", "trained", "eval", "stale", "dropped", "skipped", "window")


def some_groups(seed: int) -> list[GroupRow]:
    r = random.Random(seed)
    return [
        GroupRow(
            id=f"g{n}",
            bucket="b",
            ordinal=n,
            kind=r.choice(["task", "like", "window"]),
            key="-",
            task=None,
            model="m",
            split=r.choice(["train", "train", "eval"]),
            state=r.choice(STATES),
            n=r.randrange(9),
            created=r.random(),
            completed=r.choice([None, r.random()]),
            parked=r.random() < 0.2,
            cause=r.choice([None, None, "judge", "stale"]),
        )
        for n in range(r.choice([0, 3, 300]))
    ]


@pytest.mark.parametrize("seed", range(6))
def test_it_counts_what_the_rows_say(store, seed):
    rows = some_groups(seed)
    with store.db.write() as tx:
        tx.insert("t_groups", rows)
        found = count_groups(tx)
    own = [g for g in rows if g.kind != "window"]
    measuring = {("eval", "forming"): "eval"}  # what never trains is in no stage before a step
    assert found.states() == Counter("parked" if g.parked else measuring.get((g.split, g.state), g.state) for g in own)
    lost = Counter(g.cause or g.state for g in rows if g.cause or g.state in ("stale", "dropped", "skipped"))
    assert list(found.lost().items()) == sorted(lost.items(), key=lambda item: (-item[1], item[0]))
    states = ("stale", "dropped")
    assert found.lost_by_state() == Counter((g.state, g.cause or "unknown") for g in own if g.state in states)
    for split in ("train", "eval", None):
        for state in ("forming", "waiting_reward"):
            mine = [g for g in own if g.state == state and split in (None, g.split)]
            told = list(found.of(state, split))
            assert (sum(t.n for t in told), sum(t.episodes for t in told)) == (len(mine), sum(g.n for g in mine))
            assert min((t.created for t in told), default=None) == min((g.created for g in mine), default=None)
            done = [g.completed for g in mine if g.completed is not None]
            assert min((t.completed for t in told if t.completed is not None), default=None) == min(done, default=None)


def test_sums_by_name():
    assert totals([("a", 1), ("b", 2), ("a", 3)]) == {"a": 4, "b": 2}
