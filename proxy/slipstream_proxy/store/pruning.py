"""Small rows that only the recent past needs: they go by age, a few at a time, so that nobody waits for it."""

from __future__ import annotations

from slipstream_proxy.store.driver import Driver
from slipstream_proxy.store.values import Rules

DAY = 86_400.0
SEEN = 7 * DAY
"""Seconds for which ids of mutations are kept. Positions tell what was read; ids guard against reading it twice."""
EXPORTS = 365 * DAY
"""Seconds for which the lists of exported episodes are kept where episodes are kept for good."""
PINS = 7 * DAY
"""Seconds for which the pin of an episode that has ended is kept, at least."""
TOGETHER = 5_000
"""Rows that go in one transaction."""


class Pruning:
    def __init__(self, db: Driver, rules: Rules) -> None:
        self.db = db
        self.rules = rules

    def prune(self, now: float, keep: float | None) -> int:
        """``keep``: seconds for which episodes are kept, and the lists of those that were exported; None: for good, and
        the lists for ``EXPORTS``. Those of archives stay: who is forgotten must go from there, too. → Rows that are
        gone.
        """
        pins = max(PINS, 2 * self.rules.idle_timeout)
        gone = self._delete("t_seen", "id", "SELECT id FROM t_seen WHERE ts < ?", now - SEEN)
        gone += self._delete("t_pins", "eid", "SELECT eid FROM t_pins WHERE NOT active AND ts < ?", now - pins)
        return gone + self._prune_exports(now - (EXPORTS if keep is None else keep))

    def _delete(self, table: str, key: str, which: str, before: float) -> int:
        gone = 0
        while True:
            with self.db.write() as tx:
                count = tx.run(f"DELETE FROM {table} WHERE {key} IN ({which} LIMIT {TOGETHER})", (before,))
            gone += count
            if count < TOGETHER:
                return gone

    def _prune_exports(self, before: float) -> int:
        with self.db.write() as tx:
            old = "SELECT id FROM t_exports WHERE ts < ? AND format <> 'archive'"
            gone = tx.run(f"DELETE FROM t_exported WHERE export IN ({old})", (before,))
            tx.run("DELETE FROM t_exports WHERE ts < ? AND format <> 'archive'", (before,))
        return gone
