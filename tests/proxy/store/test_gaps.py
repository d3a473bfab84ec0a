"""Conformance: what the trainer told of each token."""

from __future__ import annotations

import pytest
from tests.support.records import NOW, group, mutation, want
from tests.support.store_writes import members_of

from slipstream.contract import BatchGaps, ChoiceGaps
from slipstream_proxy.store.read import gaps


def first_call(store, episode: str) -> str:
    return store.episodes.get("-", episode).call_list[0].id


def told(store, lease: str, *episodes: str, values=(0.125, -0.5)) -> BatchGaps:
    calls = [ChoiceGaps(key="-", episode=e, call=first_call(store, e), gaps=list(values)) for e in episodes]
    return BatchGaps(lease=lease, calls=calls)


def seen(store, episode: str) -> dict[int, list[float]]:
    return {n: g.tolist() for n, g in store.reports.tokens.get(None, first_call(store, episode)).gaps.items()}


def test_a_batch_s_runs_have_their_gaps_and_no_others(store):
    store.ingest([*group("t1"), *group("t2")], {})
    batch = store.batches.lease(want(max_groups=1), {}, 0, NOW + 9)
    mine = sorted(e for _, e, *_ in members_of(store, batch.id)["episodes"])
    other = next(e for e in ("t1-0", "t2-0") if e not in mine)
    assert store.reports.gaps.put(batch.id, told(store, "another", mine[0]), NOW) is None
    assert store.reports.gaps.put("no-batch", told(store, batch.lease, mine[0]), NOW) is None
    assert store.reports.gaps.put(batch.id, told(store, batch.lease, mine[0], other), NOW) == 1
    assert seen(store, mine[0]) == {0: [0.125, -0.5]} and seen(store, other) == seen(store, mine[1]) == {}
    assert store.reports.gaps.put(batch.id, told(store, batch.lease, mine[0], values=[1e9, 0.25]), NOW) == 1
    assert seen(store, mine[0]) == {0: [pytest.approx(60_000, rel=1e-3), 0.25]}, "told again, the newer word counts"
    store.ingest([mutation("delete", {"key": "-", "episode": mine[0]})], {})
    with store.db.read() as tx:
        assert tx.all("SELECT count(*) FROM t_gaps") == [(0,)], "it goes with its episode"


def test_the_newest_batches_stay(store, monkeypatch):
    monkeypatch.setattr(gaps, "MAX_KEPT_TOKENS", 5)
    leases = []
    for n in range(3):
        store.ingest(group(f"t{n}"), {})
        leases.append(store.batches.lease(want(), {}, 0, NOW + 9 + n))
        assert store.reports.gaps.put(leases[n].id, told(store, leases[n].lease, f"t{n}-0"), NOW + n) == 1
    assert [bool(seen(store, f"t{n}-0")) for n in range(3)] == [False, True, True]
