"""Moments as people write them: ``2h`` (that long ago), ``2026-05-01``, or seconds since the epoch."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime

from slipstream.errors import ConfigError

AGE_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def parse_moment(text: str, now: float | None = None, *, flag: str = "--since ") -> float:
    """Seconds since the epoch. A date without a time zone is in UTC. Raises ``ConfigError``."""
    text = text.strip()
    if match := _AGE.fullmatch(text):
        return (time.time() if now is None else now) - float(match[1]) * AGE_UNITS_S[match[2]]
    try:
        if math.isfinite(at := float(text)):
            return at
    except ValueError:
        pass
    try:
        day = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{flag}{text}: write an age (90m, 2h, 7d), a date (2026-05-01) or seconds since the epoch"
        ) from None
    return (day if day.tzinfo else day.replace(tzinfo=UTC)).timestamp()
