"""How far each spool writer's segments are ingested."""

from __future__ import annotations

from slipstream_proxy.store.driver import Tx
from slipstream_proxy.store.memory import Memory
from slipstream_proxy.store.values import Position


class SpoolPositions:
    """``instance``: which proxy this is, where several share one database; the positions are its own."""

    def __init__(self, instance: str, memory: Memory) -> None:
        self.instance = instance
        self.memory = memory

    def all(self, tx: Tx) -> dict[str, Position]:
        found = tx.all("SELECT writer, segment, pos FROM t_positions WHERE instance = ?", (self.instance,))
        return {writer: Position(segment, pos) for writer, segment, pos in found}

    def move(self, tx: Tx, positions: dict[str, Position]) -> None:
        if not positions:
            return
        known = self.memory.writers
        if not known.issuperset(positions):
            known |= {w for (w,) in tx.all("SELECT writer FROM t_positions WHERE instance = ?", (self.instance,))}
        for writer, p in positions.items():
            if writer in known:
                sql = "UPDATE t_positions SET segment = ?, pos = ? WHERE instance = ? AND writer = ?"
                tx.run(sql, (p.segment, p.offset, self.instance, writer))
            else:
                tx.insert("t_positions", [(self.instance, writer, p.segment, p.offset)])
                known.add(writer)
