"""What became of the newest calls: answered, refused, trainable or not."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

from slipstream_proxy.log.records import IMPORTED_ID_PREFIX
from slipstream_proxy.store.tables.driver import Tx
from slipstream_proxy.store.tables.schema import table_of

LATEST_CALLS = 64
"""Calls that say whether calls fail now, and whether they can be trained on."""
MAX_ERROR_CHARS = 200
"""Characters of an engine's error that are shown."""


class RecentCalls(NamedTuple):
    """The latest calls that came through the proxy, at most ``LATEST_CALLS``. Times are seconds since the epoch."""

    calls: int = 0
    failed: int = 0
    """Answered with an error. One that its client closed is none of them."""
    status: int = 0
    """The most frequent error's status, and what it said."""
    error: str = ""
    failed_at: float = 0.0
    """When the newest of them was."""
    answered_at: float = 0.0
    """When the newest call was answered well."""
    answered_since: int = 0
    """Calls that were answered well after the newest error."""
    trained: int = 0
    """Calls of a trained model that were answered well."""
    untrainable: int = 0
    """Those of them that cannot be trained on."""
    last_at: float = 0.0


def recent_calls(tx: Tx) -> RecentCalls:
    found: list[tuple[float, int, str, bool, bool, str | None]] = []
    for (day,) in tx.all("SELECT day FROM t_days ORDER BY day DESC"):
        sql = f"""SELECT ts, status, outcome, trained IS NOT NULL, coalesce(trainable, FALSE), error
            FROM {table_of(day)} WHERE id > ? ORDER BY id DESC LIMIT {LATEST_CALLS - len(found)}"""
        found += tx.all(sql, (f"{IMPORTED_ID_PREFIX}~",))
        if len(found) >= LATEST_CALLS:
            break
    ended = [row for row in found if row[2] != "aborted"]
    bad = [row for row in ended if row[2] == "error"]
    well = [row for row in ended if row[2] != "error"]
    errors = Counter((status, error_text(error)) for _, status, _, _, _, error in bad)
    (status, error), _ = errors.most_common(1)[0] if errors else ((0, ""), 0)
    since = next((n for n, row in enumerate(ended) if row[2] == "error"), len(ended))
    trained = [usable for _, _, _, of_ours, usable, _ in well if of_ours]
    return RecentCalls(
        calls=len(ended),
        failed=len(bad),
        status=status,
        error=error,
        failed_at=max((row[0] for row in bad), default=0.0),
        answered_at=max((row[0] for row in well), default=0.0),
        answered_since=since,
        trained=len(trained),
        untrainable=trained.count(False),
        last_at=max((row[0] for row in found), default=0.0),
    )


def error_text(error: str | None) -> str:
    """The message of an engine's error, in one line."""
    said: object = error or "no reason given"
    with suppress(ValueError, RecursionError):
        said = json.loads(error or "")
    for name in ("error", "message", "detail"):
        if isinstance(said, dict) and said.get(name):
            said = said[name]
    return " ".join(str(said).split())[:MAX_ERROR_CHARS]
