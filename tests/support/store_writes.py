"""One row at a time into a store, for tests: the packages write many in one transaction."""

from __future__ import annotations

from slipstream.contract import Adapter, Event
from slipstream_proxy.store.sqlstore import Store
from slipstream_proxy.store.values import Pin, PinAsk


def pin(store: Store, key: str, episode: str, model: str, adapter: str, arm: str, now: float, chances: str = "") -> Pin:
    """The episode's pin: the one stored, else this one."""
    return store.pins.pin_many([PinAsk(key, episode, model, adapter, arm, now, chances)])[0]


def put_adapter(store: Store, adapter: Adapter) -> None:
    with store.db.write() as tx:
        store.adapters.write(tx, adapter)


def all_adapters(store: Store) -> list[Adapter]:
    """Oldest first, with their open episodes."""
    found = store.adapters.since(-1)
    assert found is not None
    return found[1]


def add_event(store: Store, event: Event) -> int:
    """→ The event's id; ids ascend."""
    with store.db.write() as tx:
        return store.events.append(tx, event)
