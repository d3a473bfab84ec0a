"""How far the trainer's log-probabilities were from the engine's, token by token."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slipstream.contract import BatchGaps
from slipstream_proxy.store.tables.driver import IN, Driver, Tx
from slipstream_proxy.store.tables.rows import (
    Floats,
    eid_of,
)

MAX_KEPT_TOKENS = 2_000_000
"""Tokens of all batches together, two bytes each: the oldest batches beyond that go whole."""

MAX_HALF_PRECISION = 60_000.0
"""A half-precision number holds no more."""


class GapRow(NamedTuple):
    """A row of ``t_gaps``. ``gaps``: little-endian float16, one for each sampled token of the choice."""

    call: str
    choice: int
    eid: str
    batch: str
    gaps: bytes
    ts: float


class GapTable:
    def __init__(self, db: Driver) -> None:
        self.db = db

    def put(self, batch: str, told: BatchGaps, now: float) -> int | None:
        """→ How many choices were kept: those of the batch's own runs. None: the lease is another's."""
        with self.db.write() as tx:
            if not tx.all("SELECT 1 FROM t_batches WHERE id = ? AND lease = ?", (batch, told.lease)):
                return None
            members = {eid for (eid,) in tx.all("SELECT eid FROM t_members WHERE batch = ?", (batch,))}
            rows = {
                (c.call, c.choice): GapRow(c.call, c.choice, eid_of(c.key, c.episode), batch, _packed(c.gaps), now)
                for c in told.calls
            }
            own = [row for row in rows.values() if row.eid in members]
            tx.run(f"DELETE FROM t_gaps WHERE call {IN}", ([row.call for row in own],))
            tx.insert("t_gaps", own)
            self._trim(tx)
        return len(own)

    def _trim(self, tx: Tx) -> None:
        sql = "SELECT batch, sum(octet_length(gaps)) FROM t_gaps GROUP BY batch ORDER BY max(ts) DESC, batch"
        total, old = 0, []
        for batch, size in tx.all(sql):
            total += int(size) // 2
            if total > MAX_KEPT_TOKENS:
                old.append(batch)
        if old:
            tx.run(f"DELETE FROM t_gaps WHERE batch {IN}", (old,))


def gaps_of(tx: Tx, eid: str, call: str) -> dict[int, Floats]:
    """Choice → gap of each sampled token."""
    rows = tx.all("SELECT choice, gaps FROM t_gaps WHERE call = ? AND eid = ?", (call, eid))
    return {choice: np.frombuffer(gaps, "<f2").astype(np.float32) for choice, gaps in rows}


def _packed(gaps: list[float]) -> bytes:
    return np.clip(np.asarray(gaps, dtype=np.float64), -MAX_HALF_PRECISION, MAX_HALF_PRECISION).astype("<f2").tobytes()
