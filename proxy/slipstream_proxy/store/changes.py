"""What one batch of the ingester changes, collected before it is written."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from slipstream_proxy.store.rows import CallRow, EpisodeRow, PinRow, RewardRow


@dataclass(slots=True)
class Changes:
    eps: dict[str, EpisodeRow] = field(default_factory=dict)
    """Episodes that the batch touches, as they will be."""
    new: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    calls: dict[str, list[CallRow]] = field(default_factory=lambda: defaultdict(list))
    """Day → rows."""
    rewards: list[RewardRow] = field(default_factory=list)
    idem: set[tuple[str, str]] = field(default_factory=set)
    """(episode, idempotency key) of rewards that are stored."""
    rewarded: set[str] = field(default_factory=set)
    done: dict[str, None] = field(default_factory=dict)
    """Episodes that end, in the order in which they do, for the groups."""
    reopened: set[str] = field(default_factory=set)
    """Episodes that had ended by idleness."""
    early: dict[str, float] = field(default_factory=dict)
    """Episodes that ended before their first call was read, and when."""
    gone: dict[str, None] = field(default_factory=dict)
    """Deleted in this batch: nothing that comes after counts."""
    retried: set[str] = field(default_factory=set)
    pins: dict[str, PinRow] = field(default_factory=dict)
    now: float = 0.0
