"""The judge's cache: one vote on one set of transcripts, kept in the store through the control API.

The key is a hash of everything that the answer depends on. Episodes are named by their content, so that equal runs
find each other whatever their ids are. A cache that fails is no cache: the judge is asked.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from contextvars import ContextVar

from pydantic import JsonValue

from slipstream.client import AsyncClient
from slipstream.contract import JUDGE_CACHE_PREFIX
from slipstream.errors import ApiError
from slipstream_judge.model.metrics import JudgeMetrics

log = logging.getLogger(__name__)
judged: ContextVar[tuple[str, str]] = ContextVar("judged")
"""The group and the lease that this task judges: what it keeps is refused once a run of the group is forgotten."""
CONCURRENT_LOOKUPS = 4
"""Look-ups at once: they take a millisecond each, and a few connections that stay open are cheaper than many."""


def cache_key(**inputs: object) -> str:
    return JUDGE_CACHE_PREFIX + hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


class VoteCache:
    """``client`` None: no cache. ``read`` False: answers are kept but not used (a re-judging that must ask again)."""

    def __init__(self, client: AsyncClient | None, metrics: JudgeMetrics, *, read: bool = True) -> None:
        self.client, self.metrics, self.read = client, metrics, read
        self._lane = asyncio.Semaphore(CONCURRENT_LOOKUPS)

    async def get(self, key: str) -> dict[str, JsonValue] | None:
        if self.client is None or not self.read:
            return None
        try:
            async with self._lane:
                value = await self.client.cache_get(key)
        except ApiError as e:
            log.debug("the cache does not answer: %s", e)
            self.metrics.looked_up("error")
            return None
        self.metrics.looked_up("miss" if value is None else "hit")
        return value

    async def put(self, key: str, value: dict[str, JsonValue]) -> None:
        if self.client is None:
            return
        try:
            async with self._lane:
                await self.client.cache_put(key, value, *judged.get(()))
        except ApiError as e:
            log.debug("the cache did not take an entry: %s", e)
