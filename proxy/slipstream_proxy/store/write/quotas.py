"""What several proxies of one database may use of a tenant's quota: each takes blocks of it."""

from __future__ import annotations

from slipstream_proxy.store.tables.driver import Driver
from slipstream_proxy.store.tables.tallies import get_meta, set_meta

QUOTA_KEY = "quota/"
"""How ``t_meta`` names what was handed out of a quota on its latest day."""
BLOCK_PARTS = 16
"""A block is this part of what is left, so that blocks shrink to one near the end."""
LARGEST_BLOCK = 4096


class QuotaGrants:
    def __init__(self, db: Driver) -> None:
        self.db = db

    def take(self, what: str, day: int, limit: int) -> int:
        """→ How much more the asker may use on that day (days since the epoch); 0: nothing is left."""
        with self.db.write() as tx:
            before, _, taken = (get_meta(tx, QUOTA_KEY + what) or "0 0").partition(" ")
            used = int(taken) if int(before) == day else 0
            block = min(max(1, (limit - used) // BLOCK_PARTS), LARGEST_BLOCK, max(0, limit - used))
            if block:
                set_meta(tx, QUOTA_KEY + what, f"{day} {used + block}")
        return block
