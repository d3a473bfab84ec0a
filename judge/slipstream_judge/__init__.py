"""The judge. ``ruler_score`` scores runs without a proxy; ``slipstream judge`` is the worker."""

from slipstream_judge.standalone import RulerScore, ruler_score, ruler_score_sync

__all__ = ["RulerScore", "ruler_score", "ruler_score_sync"]
