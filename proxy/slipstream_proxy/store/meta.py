"""Small values that the store keeps about itself, by name."""

from __future__ import annotations

from slipstream_proxy.store.driver import Tx

STALE_RUNS = "stale runs"
"""How many runs were leased as baseline alone."""


def get_meta(tx: Tx, name: str) -> str | None:
    found = tx.all("SELECT value FROM t_meta WHERE name = ?", (name,))
    return found[0][0] if found else None


def set_meta(tx: Tx, name: str, value: str) -> None:
    if not tx.run("UPDATE t_meta SET value = ? WHERE name = ?", (value, name)):
        tx.run("INSERT INTO t_meta VALUES (?, ?)", (name, value))
