from __future__ import annotations

from tests.support.judge_fixtures import _no_keys, _warm, control, ruled

__all__ = ["_no_keys", "_warm", "control", "ruled"]
