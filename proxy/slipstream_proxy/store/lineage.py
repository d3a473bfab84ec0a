"""What was trained on an episode: batches that it was in, and adapters that came of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple

from slipstream_proxy.store.codec import load
from slipstream_proxy.store.driver import IN, Tx


class LineageRow(NamedTuple):
    """A batch that an episode was in, and what became of it."""

    eid: str
    batch: str
    advantage: float | None
    state: str
    adapter: str | None


def lineage_of(tx: Tx, eids: Collection[str]) -> dict[str, list[LineageRow]]:
    """Each episode's batches, oldest first."""
    found: dict[str, list[LineageRow]] = defaultdict(list)
    if eids:
        sql = f"""SELECT m.eid, m.batch, m.advantage, b.state, b.adapter FROM t_members m
            JOIN t_batches b ON b.id = m.batch WHERE m.eid {IN} ORDER BY b.created"""
        for row in map(LineageRow._make, tx.all(sql, (list(eids),))):
            found[row.eid].append(row)
    return found


def adapters_of(tx: Tx, batches: Collection[str]) -> set[str]:
    """Adapters that were trained on one of these batches, by the trainer's acks and by the adapters' own lists."""
    return {adapter for found in adapters_by_batch(tx, batches).values() for adapter in found}


def adapters_by_batch(tx: Tx, batches: Collection[str]) -> dict[str, set[str]]:
    """The same of each batch."""
    found: dict[str, set[str]] = {batch: set() for batch in batches}
    if not batches:
        return found
    sql = f"SELECT id, adapter FROM t_batches WHERE state = 'trained' AND id {IN}"
    for batch, adapter in tx.all(sql, (list(batches),)):
        if adapter:
            found[batch].add(adapter)
    for name, body in tx.all("SELECT name, body FROM t_adapters"):
        for batch in found.keys() & load(body)["batches"]:
            found[batch].add(name)
    return found
