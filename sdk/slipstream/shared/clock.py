"""Whether this machine's clock and a proxy's agree. Leases, groups and the ends of idle episodes go by the clock."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

DAY_S = 86_400.0
"""Seconds of a day."""
SKEW_SECONDS = 5.0
"""By which two clocks may differ."""
NTP_ADVICE = "run an NTP client on both (`timedatectl set-ntp true`)"


def clock_skew(date: str | None) -> float | None:
    """Seconds that the server of this ``Date`` is ahead. None: it says none."""
    return parsedate_to_datetime(date).timestamp() - time.time() if date else None
