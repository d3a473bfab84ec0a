"""Which runs are recent enough to be trained on, and which groups are lost because none is.

A run that is too old to be trained on, the control arm's for one, still counts in its group's baseline: its reward is
as good as the others'. So a group is lost only if nothing in it can be trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slipstream_proxy.store.codec import load
from slipstream_proxy.store.driver import Tx
from slipstream_proxy.store.rows import EpisodeRow

STALE = "stale"
"""State of a group that is too old, and reason of a call that is. The group's cause is what it waited for longest."""
FORMING, REWARD, JUDGE, TRAINER = "forming", "reward", "judge", "trainer"
ROLLED_BACK = "rolled_back"
NOTHING = "nothing_trainable"
DELETED = "deleted"
EQUAL = "equal_rewards"
SKIPPED = "skipped"


class Loss(NamedTuple):
    """What becomes of a group that no trainer will have: its state, and why."""

    state: str
    cause: str


@dataclass(slots=True)
class Freshness:
    versions: dict[str, int]
    """Adapter → its version; what is not there is the base, 0."""
    live: int
    most: int
    """Versions behind the live one that are still trained on."""
    taken_back: set[str]

    def staleness(self, adapter: str | None) -> int:
        return max(0, self.live - self.versions.get(adapter or "", 0))

    def trainable(self, adapter: str | None) -> bool:
        return self.staleness(adapter) <= self.most

    def loss(self, members: Sequence[EpisodeRow], waited_for: str) -> Loss | None:
        """None: there is something to train on. ``waited_for``: what a stale group waited for longest."""
        used = {a for ep in members for a in load(ep.adapters)}
        if not members:
            return Loss("dropped", DELETED)
        if used & self.taken_back:
            return Loss("dropped", ROLLED_BACK)
        if not used:
            return Loss("dropped", NOTHING)
        return None if any(self.trainable(a) for a in used) else Loss(STALE, waited_for)

    def stale_runs(self, members: Sequence[EpisodeRow]) -> int:
        """Runs of which no call is trained on, because they are too old."""
        return sum(
            bool(used) and not any(self.trainable(a) for a in used) for used in (load(ep.adapters) for ep in members)
        )


class Times(NamedTuple):
    """When a group began to form, was complete and had its rewards; under which lease the judge scored it last."""

    created: float
    completed: float | None
    ready_at: float | None
    judge_last: str | None

    def longest(self, now: float) -> str:
        """What the group has waited for longest."""
        completed = now if self.completed is None else self.completed
        ready = now if self.ready_at is None else self.ready_at
        spans = {
            FORMING: completed - self.created,
            JUDGE if self.judge_last else REWARD: ready - completed,
            TRAINER: now - ready,
        }
        return max(spans, key=lambda name: spans[name])


def taken_back(tx: Tx) -> set[str]:
    return {name for (name,) in tx.all("SELECT name FROM t_adapters WHERE state IN ('rolled_back', 'refused')")}


def freshness_of(tx: Tx, model: str, most: int) -> Freshness:
    """By the adapters that the store knows. The newest that serves counts as the live one."""
    rows = tx.all("SELECT name, version, state FROM t_adapters WHERE model = ?", (model,))
    live = max((version for _, version, state in rows if state in ("live", "candidate")), default=0)
    return Freshness({name: version for name, version, _ in rows}, live, most, taken_back(tx))
