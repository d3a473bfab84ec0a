from __future__ import annotations

import asyncio

import pytest

from slipstream_proxy.control.shared.problem import Problem


async def test_without_a_store_who_needs_it_is_told(plane):
    stores = plane.deps.stores
    store, ingester = stores.current, stores.ingester
    stores.replace(None, ingester)
    with pytest.raises(Problem) as e:
        _ = plane.deps.store
    assert (e.value.status, e.value.headers["retry-after"]) == (503, "5")
    assert (await plane.ask("GET", "/episodes"))[0] == 503
    stores.replace(store, ingester)
    assert (await plane.ask("GET", "/episodes"))[0] == 200


async def test_a_change_that_cannot_be_kept_is_refused(plane, monkeypatch):
    async def full(*_args, **_kwargs):
        return None

    monkeypatch.setattr(plane.deps.mutations, "put", full)
    status, body = await plane.ask("POST", "/episodes/e1/rewards", {"value": 1.0})
    assert (status, body["error"]["fix"]) == (503, "free disk space and send it again")


async def test_who_waits_for_news_is_woken_each_time(plane):
    deps = plane.deps
    for _ in range(2):
        waiting = asyncio.create_task(deps.changed.wait())
        await asyncio.sleep(0)
        deps.notify()
        assert await asyncio.wait_for(waiting, 60)
        assert not deps.changed.is_set()
    assert await deps.ask(lambda a, b: a + b, 1, b=2) == 3
