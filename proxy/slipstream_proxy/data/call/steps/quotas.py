"""Keeps calls within their tenant's quota."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from slipstream_proxy.data.access.quotas import NeedsGrant, QuotaTable, refusal, until_midnight
from slipstream_proxy.data.call.step import CallStep
from slipstream_proxy.data.engines.control_link import ALLOWANCE_PATIENCE_S
from slipstream_proxy.usage import usage_of

if TYPE_CHECKING:
    from slipstream_proxy.data.call.parts import Call
    from slipstream_proxy.data.call.result import CallResult
    from slipstream_proxy.data.engines.control_link import ControlLink
    from slipstream_proxy.data.observe.metrics import WorkerMetrics

UNCHECKED_METRIC: Final = "slipstream_quota_unchecked_calls_total"


class Quotas(CallStep):
    """Counts a call before its engine is chosen, and its tokens with its reply."""

    def __init__(self, table: QuotaTable, link: ControlLink, metrics: WorkerMetrics) -> None:
        self._table, self._link, self._metrics = table, link, metrics
        quota = table.quota
        self._tokens = quota.input_tokens_per_day is not None or quota.output_tokens_per_day is not None
        self._entered: set[str] = set()
        self._waiting: dict[str, list[Call]] = {}
        """Quota → calls that wait for more of it."""
        self._asking: dict[str, asyncio.Task[None]] = {}

    def choose(self, call: Call) -> bool:
        if call.asked.id in self._entered:
            return True
        try:
            self._table.enter()
        except NeedsGrant as need:
            self._wait(call, need.what)
            return False
        self._entered.add(call.asked.id)
        return True

    def ended(self, call: CallResult, status: int, outcome: str) -> None:
        asked, sent = call.asked.id, call.route.tries > 0
        if asked in self._entered:
            self._entered.discard(asked)
            self._table.leave(sent=sent)
            if self._tokens and sent:  # also what an engine sampled for a client that has left
                given, sampled = usage_of(call.reply.body())
                self._table.spend(given or 0, sampled or 0)

    async def enter(self) -> None:
        """Count a request that is passed through; ``leave`` must follow. Raises ``RequestRefused``."""
        while True:
            try:
                self._table.enter()
                return
            except NeedsGrant as need:
                granted = await self._link.allowance(need.what, ALLOWANCE_PATIENCE_S)
                if granted:
                    self._table.grant(need.what, granted)
                elif granted == 0 or not self._table.go_unchecked(need.what):
                    limit: int = getattr(self._table.quota, need.what)
                    raise refusal(need.what, limit, until_midnight() if granted == 0 else 1.0) from None

    def leave(self) -> None:
        self._table.leave()

    def _wait(self, call: Call, what: str) -> None:
        self._waiting.setdefault(what, []).append(call)
        if what not in self._asking:
            self._asking[what] = asyncio.create_task(self._ask(what), name=f"quota {what}")

    async def _ask(self, what: str) -> None:
        """Take more from what all proxies share, for those that wait."""
        granted = None
        try:
            granted = await self._link.allowance(what, ALLOWANCE_PATIENCE_S)
        finally:
            del self._asking[what]
            waiting = self._waiting.pop(what, [])
        if granted:
            self._table.grant(what, granted)
        for call in waiting:
            if granted is None and self._table.go_unchecked(what):
                self._metrics.add(UNCHECKED_METRIC)
            elif not granted:
                limit: int = getattr(self._table.quota, what)
                call.refuse(refusal(what, limit, until_midnight() if granted == 0 else 1.0))
                continue
            call.go_on()
