from __future__ import annotations

import pytest

from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.storage.store_handle import StoreHandle


def test_without_a_store_the_answer_is_a_503_and_the_url_says_whether_it_is_shared():
    for url, shared in (("duckdb:///x", False), ("postgresql:///x", True)):
        handle = StoreHandle(url)
        assert handle.shared is shared
        with pytest.raises(Problem) as e:
            handle.require()
        assert (e.value.status, e.value.headers["retry-after"]) == (503, "5")


async def test_everyone_sees_the_store_that_takes_the_place_of_another(plane):
    stores, fresh = plane.deps.stores, object()
    store, ingester = stores.current, stores.ingester
    stores.replace(fresh, ingester)
    deps = plane.deps
    holders = (
        deps,
        deps.mutations,
        deps.rollout.journal,
        deps.rollout.fleet,
        deps.rollout.lifecycle,
        deps.rollout.gatekeeper,
        deps.rollout.swapper,
        plane.control.keeper,
    )
    assert all(h.stores.require() is fresh for h in holders)
    stores.replace(store, ingester)
