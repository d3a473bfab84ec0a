"""In a store of an older release, failed runs counted as others: here they are found once, and counted no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from slipstream_proxy.store.conversation.calls import CallTable
from slipstream_proxy.store.conversation.failures import error_of_run
from slipstream_proxy.store.learning.groups import NOTHING_TRAINABLE_CAUSE, UNTRAINED_STATES, GroupTable
from slipstream_proxy.store.read.episodes import EpisodeTable
from slipstream_proxy.store.tables.driver import IN, Driver, Tx
from slipstream_proxy.store.tables.rows import CallRow, EpisodeRow
from slipstream_proxy.store.tables.tallies import TallyTable, get_meta, set_meta

SEARCHED_KEY = "failed runs"
"""In ``t_meta``: they have been looked for."""
AT_ONCE = 500
"""Runs whose calls are read together."""
HEAVY_COLUMNS = ("messages", "tools", "prompt_ids", "completion_ids", "lengths", "logprobs", "sampling")
LIGHT_COLUMNS = ", ".join(f"NULL AS {name}" if name in HEAVY_COLUMNS else name for name in CallRow._fields)


class FailedRuns:
    def __init__(
        self, db: Driver, calls: CallTable, episodes: EpisodeTable, groups: GroupTable, tallies: TallyTable
    ) -> None:
        self.db, self.calls, self.episodes, self.groups, self.tallies = db, calls, episodes, groups, tallies

    def begin(self) -> None:
        with self.db.write() as tx:
            if get_meta(tx, SEARCHED_KEY) is not None:
                return
            failed = self._find(tx)
            if failed:
                tx.update("t_episodes", ("eid",), ("error", "reward"), [(ep.eid, ep.error, None) for ep in failed])
                self._ungroup(tx, failed)
                self.tallies.recount(tx)
            set_meta(tx, SEARCHED_KEY, "1")

    def _find(self, tx: Tx) -> list[EpisodeRow]:
        silent: set[str] = set()
        for table in self.calls.days.tables(tx):
            silent.update(eid for (eid,) in tx.all(f"SELECT DISTINCT eid FROM {table} WHERE completion_tokens = 0"))
        found, names = [], sorted(silent)
        for start in range(0, len(names), AT_ONCE):
            eps = [
                ep for ep in self.episodes.load(tx, names[start : start + AT_ONCE]).values() if ep.state != "deleted"
            ]
            calls = self.calls.rows(tx, eps, LIGHT_COLUMNS)
            for ep in eps:
                # days that retention dropped may have held the answers
                if len(calls[ep.eid]) == ep.calls:
                    ep.error = error_of_run(calls[ep.eid])
            found += [ep for ep in eps if ep.error is not None]
        return found

    def _ungroup(self, tx: Tx, failed: Collection[EpisodeRow]) -> None:
        """They leave the groups that no trainer has had."""
        grouped = Counter(ep.grp for ep in failed if ep.grp)
        sql = f"SELECT id, n FROM t_groups WHERE state IN ({UNTRAINED_STATES}) AND id {IN}"
        sizes = {group: n - grouped[group] for group, n in tx.all(sql, (list(grouped),))} if grouped else {}
        tx.update("t_groups", ("id",), ("n",), list(sizes.items()))
        tx.update("t_episodes", ("eid",), ("grp",), [(ep.eid, None) for ep in failed if ep.grp in sizes])
        empty = [group for group, n in sizes.items() if n <= 0]
        tx.run(f"UPDATE t_groups SET state = 'dropped', cause = ? WHERE id {IN}", (NOTHING_TRAINABLE_CAUSE, empty))
        tx.run(f"DELETE FROM t_groups WHERE kind = 'window' AND single {IN}", ([ep.eid for ep in failed],))
        ((latest,),) = tx.all("SELECT max(completed) FROM t_groups")
        self.groups.mark_ready(tx, sizes, latest or 0.0)
