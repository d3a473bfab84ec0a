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
    # Apart: for a join DuckDB reads all members, and not the index.
    members = tx.all(f"SELECT eid, batch, advantage FROM t_members WHERE eid {IN}", (list(eids),)) if eids else []
    ids = list({batch for _, batch, _ in members})
    sql = f"SELECT id, state, adapter, created FROM t_batches WHERE id {IN}"
    batches = {batch: rest for batch, *rest in (tx.all(sql, (ids,)) if ids else [])}
    for eid, batch, advantage in sorted((m for m in members if m[1] in batches), key=lambda m: batches[m[1]][2]):
        state, adapter, _ = batches[batch]
        found[eid].append(LineageRow(eid, batch, advantage, state, adapter))
    return found


def trained_groups(tx: Tx, groups: Collection[str]) -> list[str]:
    """Those of these groups with an episode that a batch was trained on."""
    sql = f"SELECT eid, grp FROM t_episodes WHERE grp {IN}"
    grp_of: dict[str, str] = dict(tx.all(sql, (list(groups),))) if groups else {}
    rows = lineage_of(tx, list(grp_of))
    return sorted({grp_of[eid] for eid, of in rows.items() if any(row.state == "trained" for row in of)})


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
