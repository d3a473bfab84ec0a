from __future__ import annotations

import asyncio

import pytest

from slipstream_proxy.control.storage.mutation_log import Together
from slipstream_proxy.control.storage.store_handle import StoreHandle
from slipstream_proxy.store import open_store
from slipstream_proxy.store.tables.driver import StoreError
from slipstream_proxy.store.values import Pin, PinAsk, Rules


@pytest.fixture
def stores(tmp_path):
    handle = StoreHandle("duckdb:///x")
    handle.replace(open_store(f"duckdb:///{tmp_path / 's.duckdb'}", Rules()), None)
    yield handle
    handle.require().close()


def queue_of(stores: StoreHandle) -> Together[PinAsk, Pin]:
    return Together(lambda asks: list(stores.require().pins.pin_many(asks)))


def ask(name: str, adapter: str = "m@1") -> PinAsk:
    return PinAsk("-", name, "m", adapter, "live", 1.0, "live=1")


async def test_many_at_once_are_few_transactions(stores, monkeypatch):
    sizes, store = [], stores.require()
    many = store.pins.pin_many
    monkeypatch.setattr(store.pins, "pin_many", lambda asks: (sizes.append(len(asks)), many(asks))[1])
    queue = queue_of(stores)

    async def pin(*asks: PinAsk) -> Pin:
        return (await queue.ask(asks))[0]

    first = asyncio.create_task(pin(ask("e0")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    found = await asyncio.gather(first, *(pin(ask(f"e{n}", f"m@{n}")) for n in range(1, 200)))
    assert [p.adapter for p in found[1:]] == [f"m@{n}" for n in range(1, 200)]
    assert sum(sizes) == 200 and len(sizes) <= 3
    again = await asyncio.gather(*(pin(ask("e7", f"other{n}")) for n in range(5)))
    assert {p.adapter for p in again} == {"m@7"}, "the first to ask is the one that counts"
    both = await asyncio.gather(pin(ask("new", "a")), pin(ask("new", "b")))
    assert {p.adapter for p in both} == {"a"}, "in one transaction, too"
    one, two = await asyncio.gather(queue.ask([ask("f1", "a"), ask("f2", "b")]), queue.ask([ask("f3", "c")]))
    assert [p.adapter for p in (*one, *two)] == ["a", "b", "c"], "each worker gets its own"


async def test_a_store_that_fails_fails_those_that_asked_and_no_others(stores, monkeypatch):
    store = stores.require()
    many = store.pins.pin_many

    def fail(_):
        monkeypatch.setattr(store.pins, "pin_many", many)
        raise StoreError("gone")

    monkeypatch.setattr(store.pins, "pin_many", fail)
    queue = queue_of(stores)
    with pytest.raises(StoreError):
        await queue.ask([ask("a")])
    assert (await queue.ask([ask("a")]))[0].adapter == "m@1"


async def test_who_goes_away_stops_nobody(stores):
    queue = queue_of(stores)
    tasks = [asyncio.create_task(queue.ask([ask(f"e{n}")])) for n in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    assert [p.adapter for (p,) in await asyncio.gather(*tasks[1:])] == ["m@1", "m@1"]
