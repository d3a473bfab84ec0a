"""A call's tokens as they were sampled."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream_proxy.store.conversation.call_rows import CallList, choices_of
from slipstream_proxy.store.conversation.calls import TOKEN_COLUMNS, CallTable
from slipstream_proxy.store.learning.groups import LineageRow, lineage_of
from slipstream_proxy.store.read.gaps import gaps_of
from slipstream_proxy.store.tables.driver import Driver, Tx
from slipstream_proxy.store.tables.rows import (
    EPISODE_COLUMNS,
    CallRow,
    EpisodeRow,
    Floats,
    Ids,
)


@dataclass(slots=True)
class StoredTokens:
    """``choices``: ids and log-probabilities. ``gaps``: choice → trainer's minus engine's. ``trained``: last batch."""

    ep: EpisodeRow
    call: CallRow
    prompt: Ids
    choices: list[tuple[Ids, Floats]]
    gaps: dict[int, Floats]
    trained: LineageRow | None
    step: int | None
    group_state: str | None
    group_cause: str | None


class CallTokenTable:
    """The tokens of one call, without putting the rest of its run together."""

    def __init__(self, db: Driver, calls: CallTable) -> None:
        self.db = db
        self.calls = calls

    def get(self, key: str | None, call: str) -> StoredTokens | None:
        """None: there is no such call, it is another key's, or it is forgotten."""
        with self.db.read() as tx:
            ep = self._episode(tx, call)
            if ep is None or key not in (None, ep.key):
                return None
            calls = CallList(self.calls.rows(tx, [ep], TOKEN_COLUMNS)[ep.eid])
            row = next((r for r in calls.rows if r.id == call), None)
            if row is None:
                return None
            trained = [r for r in lineage_of(tx, [ep.eid])[ep.eid] if r.state == "trained"]
            last = trained[-1] if trained else None
            steps = tx.all("SELECT step FROM t_batches WHERE id = ?", (last.batch,)) if last else []
            groups = tx.all("SELECT state, cause FROM t_groups WHERE id = ?", (ep.grp,)) if ep.grp else []
            state, cause = groups[0] if groups else (None, None)
            gaps = gaps_of(tx, ep.eid, call)
        step = steps[0][0] if steps else None
        return StoredTokens(ep, row, calls.ids(row), choices_of(row), gaps, last, step, state, cause)

    def _episode(self, tx: Tx, call: str) -> EpisodeRow | None:
        for table in reversed(self.calls.days.tables(tx)):
            for (eid,) in tx.all(f"SELECT eid FROM {table} WHERE id = ?", (call,)):
                sql = f"SELECT {EPISODE_COLUMNS} FROM t_episodes WHERE eid = ? AND state <> 'deleted'"
                found = tx.all(sql, (eid,))
                return EpisodeRow(*found[0]) if found else None
        return None
