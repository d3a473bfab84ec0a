"""What one batch of the ingester changes, before it is written."""

from __future__ import annotations

from collections import defaultdict

from slipstream_proxy.store.driver import Row
from slipstream_proxy.store.rows import Ep


class Work:
    """What one batch changes."""

    def __init__(self) -> None:
        self.eps: dict[str, Ep] = {}
        self.new: set[str] = set()
        self.changed: set[str] = set()
        self.calls: dict[str, list[Row]] = defaultdict(list)
        """Day → rows."""
        self.rewards: list[Row] = []
        self.idem: set[tuple[str, str]] = set()
        self.rewarded: set[str] = set()
        self.done: dict[str, None] = {}
        """In the order told, for the groups."""
        self.early: dict[str, float] = {}
        self.gone: dict[str, None] = {}
        """Deleted in this batch: nothing that comes after counts."""
        self.retried: set[str] = set()
        self.pins: dict[str, Row] = {}
        self.now = 0.0
