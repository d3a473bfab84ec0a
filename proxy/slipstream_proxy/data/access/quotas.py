"""What a tenant has used of its quota today (UTC), counted over all workers of a proxy: a file that they share.

Calls are counted before they are sent, each once: what a worker that was killed has counted stays counted. Tokens are
counted when a reply is there, so that the calls under way go beyond the limit, and no later one. Where several proxies
have one database, each takes what it may use from there, in blocks that shrink to one (``granted``).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from slipstream.settings.tenants import QuotaConfig
from slipstream_proxy.data.access.limits import MAX_WORKERS
from slipstream_proxy.data.shared_map import SharedMap
from slipstream_proxy.data.wire.errors import RequestRefused

DAY_S: Final = 86_400
DAILY_QUOTAS: Final = ("calls_per_day", "input_tokens_per_day", "output_tokens_per_day")
_NUMBER: Final = struct.Struct("<q")
_PLACES: Final = 2 + 2 * len(DAILY_QUOTAS) + MAX_WORKERS
_UNCHECKED: Final = 1
_USED: Final = 2
_GRANTED: Final = _USED + len(DAILY_QUOTAS)
_RUNNING: Final = _GRANTED + len(DAILY_QUOTAS)
UNCHECKED_SHARE: Final = 0.01
"""Of a limit: what a proxy lets through at most in a day while the database cannot be asked."""
_now: Final[Callable[[], float]] = time.time


class NeedsGrant(Exception):
    """What this proxy may use by itself is used up."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class QuotaTable:
    """One worker's view. ``shared``: other proxies use of the same quota."""

    def __init__(
        self, quota: QuotaConfig, path: Path | None = None, workers: int = 1, number: int = 0, *, shared: bool = False
    ) -> None:
        """``path`` None: for a test. Raises ``OSError`` where there is no room for the file."""
        self._workers, self._shared = workers, shared
        self.follow(quota)
        self._map = SharedMap(path, _PLACES * _NUMBER.size)
        self._table = self._map.bytes
        self._mine = _RUNNING + number
        with self._map.locked():
            self._set(self._mine, 0)  # those of a predecessor that was killed

    def follow(self, quota: QuotaConfig) -> None:
        """From now on these limits hold, for all of today."""
        self.quota = quota
        self._limits: dict[str, int | None] = {what: getattr(quota, what) for what in DAILY_QUOTAS}

    def enter(self) -> None:
        """Count a call; ``leave`` must follow. Raises ``RequestRefused`` (429), or ``NeedsGrant``."""
        with self._map.locked():
            self._roll()
            for place, what in enumerate(DAILY_QUOTAS):
                limit = self._limits[what]
                if limit is not None:
                    self._check(place, what, limit)
            most = self.quota.concurrency
            if most is not None and sum(self._get(_RUNNING + n) for n in range(self._workers)) >= most:
                raise refusal("concurrency", most, 1.0)
            self._add(_USED, 1)
            self._add(self._mine, 1)

    def _check(self, place: int, what: str, limit: int) -> None:
        used = self._get(_USED + place)
        if used >= limit + (self._get(_UNCHECKED) if self._shared else 0):
            raise refusal(what, limit, until_midnight())
        if self._shared and used >= self._get(_GRANTED + place):
            raise NeedsGrant(what)

    def leave(self, *, sent: bool = True) -> None:
        """``sent`` False: no engine saw the call, and it does not count."""
        with self._map.locked():
            self._add(self._mine, -1)
            if not sent:
                self._add(_USED, -1)

    def spend(self, given: int, sampled: int) -> None:
        """Tokens of a call's prompt and reply."""
        with self._map.locked():
            self._roll()
            self._add(_USED + 1, given)
            self._add(_USED + 2, sampled)

    def grant(self, what: str, amount: int) -> None:
        """So much more may be used here today."""
        with self._map.locked():
            self._roll()
            self._add(_GRANTED + DAILY_QUOTAS.index(what), amount)

    def go_unchecked(self, what: str) -> bool:
        """The database cannot be asked. → Whether one more may be used all the same."""
        with self._map.locked():
            self._roll()
            bound = max(1, int(UNCHECKED_SHARE * (self._limits[what] or 0)))
            if self._get(_UNCHECKED) >= bound:
                return False
            self._add(_UNCHECKED, 1)
            self._add(_GRANTED + DAILY_QUOTAS.index(what), 1)
            return True

    @property
    def used(self) -> dict[str, int]:
        """Of today."""
        with self._map.locked():
            self._roll()
            return {what: self._get(_USED + place) for place, what in enumerate(DAILY_QUOTAS)}

    def _roll(self) -> None:
        today = int(_now() // DAY_S)
        if self._get(0) != today:
            self._set(0, today)
            for place in range(1, _RUNNING):
                self._set(place, 0)

    def _get(self, place: int) -> int:
        found: int = _NUMBER.unpack_from(self._table, place * _NUMBER.size)[0]
        return found

    def _set(self, place: int, value: int) -> None:
        _NUMBER.pack_into(self._table, place * _NUMBER.size, max(0, value))

    def _add(self, place: int, amount: int) -> None:
        self._set(place, self._get(place) + amount)

    def close(self) -> None:
        self._map.close()


def until_midnight() -> float:
    """Seconds until the next day begins (UTC)."""
    return DAY_S - _now() % DAY_S


def refusal(what: str, limit: int, retry_after: float) -> RequestRefused:
    when = "at once" if what == "concurrency" else "today (UTC)"
    message = f"the quota {what} of {limit} is used up {when}: [tenants.NAME.quota] sets it"
    return RequestRefused(429, message, field=f"quota.{what}", retry_after=retry_after)
