"""Groups counted once, for everything that is told of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from slipstream_proxy.store.driver import Tx

K = TypeVar("K")
LOST = ("stale", "dropped", "skipped")
"""States of groups from which nothing was learnt."""


class AlikeGroups(NamedTuple):
    """Groups that have all of this in common. Times are seconds since the epoch."""

    state: str
    parked: bool
    window: bool
    """Around a single episode, for the judge alone."""
    split: str | None
    """None for trained ones that have no cause: they are not told apart."""
    cause: str | None
    n: int
    episodes: int
    created: float | None
    """When the first one began to form."""
    completed: float | None
    """When the first one was complete."""


class GroupCounts:
    """Sums over ``AlikeGroups``."""

    def __init__(self, rows: Iterable[AlikeGroups]) -> None:
        self.rows = list(rows)

    def states(self) -> dict[str, int]:
        """State, or ``parked`` → groups; no windows."""
        return totals(("parked" if row.parked else row.state, row.n) for row in self.rows if not row.window)

    def lost(self) -> dict[str, int]:
        """Cause → groups from which nothing was learnt, the most frequent first."""
        lost = ((row.cause or row.state, row.n) for row in self.rows if row.cause is not None or row.state in LOST)
        return dict(sorted(totals(lost).items(), key=lambda item: (-item[1], item[0])))

    def lost_by_state(self) -> dict[tuple[str, str], int]:
        """(stale or dropped, cause) → groups; no windows."""
        rows = (row for row in self.rows if not row.window and row.state in ("stale", "dropped"))
        return totals(((row.state, row.cause or "unknown"), row.n) for row in rows)

    def of(self, state: str, split: str | None = None) -> Iterator[AlikeGroups]:
        """No windows. ``split`` None: of all."""
        for row in self.rows:
            if row.state == state and not row.window and split in (None, row.split):
                yield row


def count_groups(tx: Tx) -> GroupCounts:
    """In one pass. Most groups of a store that has grown are trained on and have nothing else to tell."""
    trained = "state = 'trained' AND NOT parked AND kind <> 'window' AND cause IS NULL"
    other = "(state <> 'trained' OR parked OR kind = 'window' OR cause IS NOT NULL)"
    sql = f"""SELECT state, parked, kind = 'window', split, cause, count(*), coalesce(sum(n), 0), min(created),
        min(completed) FROM t_groups WHERE {other} GROUP BY 1, 2, 3, 4, 5
        UNION ALL SELECT 'trained', FALSE, FALSE, NULL, NULL, count(*), 0, NULL, NULL FROM t_groups WHERE {trained}"""
    rows = (
        AlikeGroups(s, p, w, split, cause, int(n), int(eps), *rest)
        for s, p, w, split, cause, n, eps, *rest in tx.all(sql)
    )
    return GroupCounts(row for row in rows if row.n)


def totals(items: Iterable[tuple[K, int]]) -> dict[K, int]:
    """Sums by name."""
    found: dict[K, int] = {}
    for key, n in items:
        found[key] = found.get(key, 0) + n
    return found
