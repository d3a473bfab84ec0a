"""How far the trainer's log-probabilities are from the engine's: token by token for people, and as one figure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from slipstream.contract import ChoiceGaps
from slipstream_trainer.batch.layout import Scored
from slipstream_trainer.batch.rows import Floats, Sample

MAX_REPORTED_TOKENS = 100_000
"""Tokens told of a batch, those of its last groups: the page shows newest runs first, and a batch can have millions."""
MIN_GAP_TOKENS = 32
"""Tokens that a mean gap of the engine needs."""
MAX_REPORTED_VALUE = 1000.0
"""What is not finite, or further, is told as this far."""


def newest(gaps: Iterable[ChoiceGaps], most: int = MAX_REPORTED_TOKENS) -> list[ChoiceGaps]:
    """The first of them, which are the newest, up to ``most`` tokens."""
    found: list[ChoiceGaps] = []
    for gap in gaps:
        most -= len(gap.gaps)
        if most < 0:
            break
        found.append(gap)
    return found


def gaps_of(
    samples: Sequence[Sample], scored: Scored, gap_T: Floats, most: int = MAX_REPORTED_TOKENS
) -> list[ChoiceGaps]:
    """The newest first. ``gap_T``: the trainer's minus the engine's, of each of ``scored``'s tokens, which stand sample
    by sample.
    """
    return newest(_backwards(samples, scored, gap_T), most)


def _backwards(samples: Sequence[Sample], scored: Scored, gap_T: Floats) -> Iterator[ChoiceGaps]:
    told_T = (
        np.nan_to_num(np.clip(gap_T, -MAX_REPORTED_VALUE, MAX_REPORTED_VALUE), nan=MAX_REPORTED_VALUE)
        .astype(np.float64)
        .round(4)
    )
    for i in reversed(range(len(samples))):
        s = samples[i]
        begin, end = np.searchsorted(scored.sample_T, (i, i + 1))
        if begin < end and s.call:
            gaps = told_T[begin:end].tolist()
            yield ChoiceGaps(key=s.key, episode=s.episode, call=s.call, choice=s.choice, gaps=gaps)


def engine_gap(samples: Sequence[Sample], scored: Scored, gap_T: Floats) -> float | None:
    """Mean |``gap_T``| of the tokens that the trainer's own weights sampled. None: they are too few.

    Other versions' tokens differ because the policy has changed. These differ only where engine and trainer compute
    otherwise.
    """
    own_S = np.array([s.own for s in samples], dtype=bool)
    own_T = own_S[scored.sample_T]
    if int(own_T.sum()) < MIN_GAP_TOKENS:
        return None
    return float(
        np.abs(
            np.clip(np.nan_to_num(gap_T[own_T], nan=MAX_REPORTED_VALUE), -MAX_REPORTED_VALUE, MAX_REPORTED_VALUE)
        ).mean()
    )
