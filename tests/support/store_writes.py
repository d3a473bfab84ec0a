"""One row at a time into a store, for tests: the packages write many in one transaction."""

from __future__ import annotations

from itertools import count
from typing import Any

from slipstream.contract import Adapter, BatchAck, Event, ScoresIn
from slipstream_proxy.log.records import Mutation
from slipstream_proxy.store.store import Store
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


_numbers = count()


def _mutate(store: Store, op: str, data: dict[str, Any], now: float) -> None:
    """As the control plane does with what it accepts, without a spool."""
    store.ingest([Mutation(f"{op}{next(_numbers)}", op, now, data)], {})


def take_scores(store: Store, group: str, scores: ScoresIn, now: float) -> bool:
    """False: refused."""
    held = store.judging.holds(group, scores.lease)
    if held is not None:
        _mutate(store, "scores", {"group": group, "key": held.key, "scores": scores.model_dump(mode="json")}, now)
    return held is not None


def take_ack(store: Store, batch: str, ack: BatchAck, now: float) -> bool:
    """False: refused."""
    members = store.batches.takes(batch, ack)
    if members:
        _mutate(store, "ack", {"batch": batch, "ack": ack.model_dump(mode="json"), "members": members}, now)
    return members is not None


def members_of(store: Store, batch: str) -> dict[str, Any]:
    """Of a batch that is leased, as its ack's mutation has them."""
    with store.db.read() as tx:
        ((lease,),) = tx.all("SELECT lease FROM t_batches WHERE id = ?", (batch,))
    members = store.batches.takes(batch, BatchAck(lease=lease, outcome="trained"))
    assert members
    return members


def put_value(store: Store, key: str, value: dict[str, Any], now: float, **more: Any) -> None:
    _mutate(store, "cache", {"key": key, "value": value, "at": now, **more}, now)
