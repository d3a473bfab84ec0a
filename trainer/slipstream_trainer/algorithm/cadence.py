"""How many groups a step waits for: as few as are set, and more while runs end many versions behind.

A run that lasts while ``concurrency / (groups a step × groups' size)`` versions go live is that many versions behind
when it ends. Small steps, which give a small agent its first adapter soon, would leave the runs of a busy one too old
to train on. So while runs come late, steps wait for more groups and for longer, up to ``max_groups``; once they come in
time again, for fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.settings import TrainerConfig
from slipstream_trainer.batch.rows import Sample

AGE_QUANTILE = 0.75
"""The quantile of the runs' ages in a batch: fewer than a quarter may be late for another reason."""
LATE_SHARE, EARLY_SHARE = 0.7, 0.5
"""Shares of ``max_staleness`` above which a step waits for more groups, and up to which it waits for fewer. Steps
overlap with runs, so that the shortest run is one or two versions behind, however many groups a step waits for."""
RISE_FACTOR, FALL_FACTOR = 2.0, 0.8
"""What the groups of a step are multiplied by: runs that come late are lost, so it waits for more at once, and tries
with a few less."""


@dataclass(slots=True)
class Cadence:
    """Follows the staleness of batches."""

    factor: float = 1.0

    def wanted(self, t: TrainerConfig) -> tuple[int, float]:
        """(``min_groups``, ``max_wait``) of the next lease."""
        return min(t.max_groups, round(t.min_groups * self.factor)), t.max_wait * self.factor

    def note(self, t: TrainerConfig, samples: Sequence[Sample], control: str | None = None) -> None:
        """After a lease. Runs that are trained on however old they are say nothing of how fast versions come, and
        neither do those of ``control``, an older version that the gate still gives to new runs.
        """
        if any(s.trainable and s.staleness > t.max_staleness for s in samples):
            return
        runs = {s.run: s.staleness for s in samples if s.call and s.adapter != control}
        if not runs or not t.max_staleness:
            return
        behind = float(np.quantile(list(runs.values()), AGE_QUANTILE))
        if behind > LATE_SHARE * t.max_staleness and t.min_groups * self.factor < t.max_groups:
            self.factor *= RISE_FACTOR
        elif behind <= EARLY_SHARE * t.max_staleness and self.factor > 1:
            self.factor = max(1.0, self.factor * FALL_FACTOR)
