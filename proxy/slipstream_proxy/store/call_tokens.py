"""The tokens of one call, without putting the rest of its run together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slipstream_proxy.store.call_list import head_ids
from slipstream_proxy.store.call_rows import choices_of
from slipstream_proxy.store.calls import TOKEN_COLUMNS, CallTable
from slipstream_proxy.store.codec import Floats, Ids, ids_of
from slipstream_proxy.store.driver import Driver, Tx
from slipstream_proxy.store.gaps import gaps_of
from slipstream_proxy.store.lineage import LineageRow, lineage_of
from slipstream_proxy.store.rows import EPISODE_COLUMNS, CallRow, EpisodeRow


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


def prompt_of(call: CallRow, calls: dict[str, CallRow]) -> Ids:
    """A call's prompt. Of each earlier call only the part that it shares is read: the cost is the prompt's length."""
    parts = [ids_of(call.prompt_ids)]
    keep, base = call.keep_tokens, call.delta_base
    while keep > 0 and base is not None and base in calls:
        row = calls[base]
        parts.append(head_ids(row, max(0, keep - row.keep_tokens)))
        keep, base = min(keep, row.keep_tokens), row.delta_base
    return np.concatenate(parts[::-1])


class CallTokenTable:
    def __init__(self, db: Driver, calls: CallTable) -> None:
        self.db = db
        self.calls = calls

    def get(self, key: str | None, call: str) -> StoredTokens | None:
        """None: there is no such call, it is another key's, or it is forgotten."""
        with self.db.read() as tx:
            ep = self._episode(tx, call)
            if ep is None or key not in (None, ep.key):
                return None
            rows = {r.id: r for r in self.calls.rows(tx, [ep], TOKEN_COLUMNS)[ep.eid]}
            if call not in rows:
                return None
            trained = [r for r in lineage_of(tx, [ep.eid])[ep.eid] if r.state == "trained"]
            last = trained[-1] if trained else None
            steps = tx.all("SELECT step FROM t_batches WHERE id = ?", (last.batch,)) if last else []
            groups = tx.all("SELECT state, cause FROM t_groups WHERE id = ?", (ep.grp,)) if ep.grp else []
            state, cause = groups[0] if groups else (None, None)
            gaps = gaps_of(tx, ep.eid, call)
        row = rows[call]
        step = steps[0][0] if steps else None
        return StoredTokens(ep, row, prompt_of(row, rows), choices_of(row), gaps, last, step, state, cause)

    def _episode(self, tx: Tx, call: str) -> EpisodeRow | None:
        for table in reversed(self.calls.days.tables(tx)):
            for (eid,) in tx.all(f"SELECT eid FROM {table} WHERE id = ?", (call,)):
                sql = f"SELECT {EPISODE_COLUMNS} FROM t_episodes WHERE eid = ? AND state <> 'deleted'"
                found = tx.all(sql, (eid,))
                return EpisodeRow(*found[0]) if found else None
        return None
