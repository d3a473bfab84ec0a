"""A group that is too long for one call: overlapping parts, tied by anchors, on one scale.

The first part is judged; its best and its worst run (or its middle one, where only one fits) are the anchors, and
stand in every other part too, without their scores being told. A judge scores relatively, so each part has a scale of
its own: the anchors say how to map it back (shift, and with two anchors also stretch, within 0.5 … 2). Mapped scores
that leave 0 … 1 shrink the whole group evenly, so that no two of them become equal by clipping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from slipstream_judge.prompt import Grade

STRETCH = (0.5, 2.0)


def pack(order: Sequence[str], sizes: Mapping[str, int], room: int, least: int) -> list[list[str]]:
    """Runs in their order, as many a part as fit ``room`` tokens and at least ``least``; the last may have fewer."""
    parts: list[list[str]] = []
    used = 0
    for run in order:
        if not parts or (used + sizes[run] > room and len(parts[-1]) >= least):
            parts.append([])
            used = 0
        parts[-1].append(run)
        used += sizes[run]
    return parts


def choose_anchors(scores: Mapping[str, Grade], sizes: Mapping[str, int], room: int) -> list[str]:
    """Best and worst of the first part if they leave half of the room, else the one in the middle."""
    ranked = sorted(scores, key=lambda r: (scores[r].score, r))
    ends = [ranked[0], ranked[-1]]
    if len(ranked) >= 3 and sum(sizes[r] for r in ends) <= room // 2:
        return ends
    return [ranked[len(ranked) // 2]]


def _mapping(own: Sequence[float], reference: Sequence[float]) -> tuple[float, float]:
    """(stretch, shift) that takes the anchors' own scores to the reference."""
    stretch = 1.0
    if len(own) == 2 and abs(own[1] - own[0]) > 0.05:
        stretch = (reference[1] - reference[0]) / (own[1] - own[0])
        stretch = min(max(stretch, STRETCH[0]), STRETCH[1])
    return stretch, fmean(reference) - stretch * fmean(own)


def merge(parts: Sequence[Mapping[str, Grade]], anchors: Sequence[str]) -> dict[str, Grade]:
    """One scale for all.

    The reference is the anchors' mean over the parts; reasons are those of the first part that a run stood in.
    """
    reference = [fmean(p[a].score for p in parts) for a in anchors]
    values: dict[str, list[float]] = {}
    reasons: dict[str, str] = {}
    for part in parts:
        stretch, shift = _mapping([part[a].score for a in anchors], reference)
        for run, grade in part.items():
            values.setdefault(run, []).append(stretch * grade.score + shift)
            reasons.setdefault(run, grade.reason)
    means = {run: fmean(v) for run, v in values.items()}
    low, high = min(0.0, *means.values()), max(1.0, *means.values())
    return {run: Grade(min(1.0, max(0.0, (mean - low) / (high - low))), reasons[run]) for run, mean in means.items()}
