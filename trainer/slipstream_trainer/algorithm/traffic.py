"""What kind of traffic a run is of, and what runs of that kind get beside others.

A run of no task is compared with all of its batch. An easy customer's run would count as good for being easy. So the
trainer remembers for each kind (an API key; a key with a set of tags) how far its rewards lie from all runs' level, as
a fading mean. A run's *offset* is that distance: its tag set's, drawn to its key's, which is drawn to zero, each by
``PRIOR_RUNS`` runs. A tag set that never came before has its key's.

The level is the fading mean of the rewards less their offsets. So neither a better policy nor another mix of traffic
changes the distance between two kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from slipstream_trainer.batch.rows import Sample

HALF_LIFE = 64
"""Later runs of a kind after which a run counts half."""
PRIOR_RUNS = 8.0
"""Runs of a kind that count as much as what is expected of it without any."""
MAX_SPREAD_SHARE = 0.99
"""Offsets are used where they lessen the rewards' spread to this share or below. Else they would add noise, which
``trainer.advantage = "std"`` makes larger where rewards hardly differ."""
MAX_KINDS = 4096
"""Kinds that are remembered; those seen last stay."""


def kinds_of(s: Sample) -> tuple[str, str]:
    """The wide one and the narrow one. Hashes: what a tag says of a user is in no checkpoint."""
    texts = (s.key, f"{s.key}\0{s.tags}")
    wide, narrow = (blake2b(t.encode(), digest_size=8).hexdigest() for t in texts)
    return wide, narrow


def _later(before: Sequence[float], values: Sequence[float]) -> list[float]:
    """(Weight, sum, number of values) of a fading mean after these values too."""
    left = 0.5 ** (len(values) / HALF_LIFE)
    return [left * before[0] + len(values), left * before[1] + sum(values), before[2] + len(values)]


@dataclass(slots=True)
class Traffic:
    """Kept in each checkpoint."""

    kinds: dict[str, list[float]] = field(default_factory=dict)
    """Kind → weight of its runs, sum of their distances from the level, and how many they are. Those seen last come
    last.
    """
    level: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    """The same of all runs' rewards less their offsets."""
    grades: Traffic | None = None
    """The same of calls' own rewards, which have another scale than those of runs."""

    def __post_init__(self) -> None:
        if isinstance(self.grades, dict):  # from a checkpoint
            self.grades = Traffic(**self.grades)

    def of_grades(self) -> Traffic:
        if self.grades is None:
            self.grades = Traffic()
        return self.grades

    def offset(self, kinds: Sequence[str]) -> float:
        """0 for what never came before."""
        found = 0.0
        for kind in kinds:
            weight, total, seen = self.kinds.get(kind, (1.0, 0.0, 0.0))
            # by all runs: the weight stops growing, and a part of the distance would stay for good
            found = (seen * total / weight + PRIOR_RUNS * found) / (seen + PRIOR_RUNS)
        return found

    def even_out(
        self, runs: Sequence[Sample], rewards_E: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """(Rewards less their runs' offsets, with the mean that they had; which runs have an offset), by what came
        before; only then are these runs remembered. ``runs``: one sample of each.
        """
        if not len(runs):
            return rewards_E, np.zeros(0, dtype=bool)
        kinds_E = [kinds_of(s) for s in runs]
        offsets_E = np.array([self.offset(kinds) for kinds in kinds_E])
        self._note(kinds_E, rewards_E, offsets_E)
        even_E = rewards_E - (offsets_E - offsets_E.mean())
        if even_E.std() > MAX_SPREAD_SHARE * rewards_E.std():
            return rewards_E, np.zeros(len(rewards_E), dtype=bool)
        return even_E, offsets_E != 0

    def _note(
        self, kinds_E: Sequence[tuple[str, str]], rewards_E: NDArray[np.float64], offsets_E: NDArray[np.float64]
    ) -> None:
        self.level = _later(self.level, (rewards_E - offsets_E).tolist())
        apart: dict[str, list[float]] = {}
        for kinds, distance in zip(kinds_E, (rewards_E - self.level[1] / self.level[0]).tolist(), strict=True):
            for kind in kinds:
                apart.setdefault(kind, []).append(distance)
        for kind, distances in apart.items():
            self.kinds[kind] = _later(self.kinds.pop(kind, (0.0, 0.0, 0.0)), distances)
        for kind in list(self.kinds)[:-MAX_KINDS]:
            del self.kinds[kind]
