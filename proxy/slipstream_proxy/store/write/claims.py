"""Which data folder an instance is, where several proxies share one database.

A copy of a folder has the instance of the folder that it was copied from, and spool segments of the same numbers: the
positions of the one would hide the records of the other. So each start of a proxy leaves a new token, in the database
and in the folder, and positions move for the token's holder alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass

from slipstream_proxy.store.tables.driver import StoreError, Tx
from slipstream_proxy.store.tables.tallies import get_meta, set_meta
from slipstream_proxy.store.write.deletion import ALIVE_PREFIX, AWAY_AFTER_S

OWNER_KEY = "owner/"
"""How ``t_meta`` names the claim on an instance."""


class TwinError(StoreError):
    """Another proxy has this data folder's instance."""


@dataclass(frozen=True, slots=True)
class InstanceClaim:
    instance: str
    token: str
    """Of this start."""
    place: str
    """The host and the folder."""

    def take(self, tx: Tx, known: Collection[str], now: float) -> None:
        """``known``: tokens that the folder holds of its earlier starts. Raises ``TwinError``."""
        value, alive = get_meta(tx, OWNER_KEY + self.instance), get_meta(tx, ALIVE_PREFIX + self.instance)
        if why := twin_of(value, float(alive or 0.0), self.place, known, now):
            raise TwinError(why)
        set_meta(tx, OWNER_KEY + self.instance, json.dumps(asdict(self)))

    def check(self, tx: Tx) -> None:
        """Nobody has taken it since. The row stays locked until the transaction ends. Raises ``TwinError``."""
        sql = "SELECT value FROM t_meta WHERE name = ? FOR UPDATE"
        found = tx.all(sql, (OWNER_KEY + self.instance,))
        if not found or json.loads(found[0][0])["token"] != self.token:
            where = json.loads(found[0][0])["place"] if found else "nowhere"
            raise TwinError(f"this data folder is used by another proxy since ({where}): {TWIN_FIX}")


TWIN_FIX = (
    "if it is a copy, stop this proxy and start it with `slipstream proxy --new-instance`, which makes it a proxy of "
    "its own; its spool is kept, and read again"
)


def twin_of(value: str | None, alive: float, place: str, known: Collection[str], now: float) -> str | None:
    """Why a folder with these tokens is a copy of one that is, or was, in use elsewhere; None: it is not."""
    if value is None:
        return None
    owner = json.loads(value)
    if owner["token"] not in known:
        return f"another copy of this data folder was started later ({owner['place']}): {TWIN_FIX}"
    ago = now - alive
    if owner["place"] != place and ago < AWAY_AFTER_S:
        why = (
            f"the proxy of this data folder runs elsewhere ({owner['place']}), and was alive {max(0.0, ago):.0f} s ago"
        )
        return f"{why}: if that was this one, before it was moved, wait a minute; {TWIN_FIX}"
    return None
