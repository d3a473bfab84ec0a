"""Keeps calls within their tenant's quota."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from slipstream_proxy.data.access.quotas import NeedsGrant, QuotaTable, refusal, until_midnight
from slipstream_proxy.data.call.step import CallStep
from slipstream_proxy.data.engines.control_link import ALLOWANCE_PATIENCE_S
from slipstream_proxy.usage import usage_of

if TYPE_CHECKING:
    from slipstream.settings.tenants import QuotaConfig
    from slipstream_proxy.data.call.parts import Call
    from slipstream_proxy.data.call.result import CallResult
    from slipstream_proxy.data.engines.control_link import ControlLink
    from slipstream_proxy.data.observe.metrics import WorkerMetrics
    from slipstream_proxy.data.wire.errors import RequestRefused

    Waiter = Callable[[RequestRefused | None], None]

UNCHECKED_METRIC: Final = "slipstream_quota_unchecked_calls_total"


class Quotas(CallStep):
    """Counts a call before its engine is chosen, and its tokens with its reply."""

    def __init__(self, make: Callable[[], QuotaTable], link: ControlLink, metrics: WorkerMetrics) -> None:
        """``make``: the table, once calls are counted. None are before ``follow``."""
        self._make, self._link, self._metrics = make, link, metrics
        self._table: QuotaTable | None = None
        self._tokens = False
        self._entered: set[str] = set()
        self._waiting: dict[str, list[Waiter]] = {}
        """Quota → who waits for more of it."""
        self._asking: dict[str, asyncio.Task[None]] = {}

    def follow(self, quota: QuotaConfig) -> None:
        """From now on these limits hold. Raises ``OSError`` where there is no room for the table."""
        if self._table is None and quota.counts_calls:
            self._table = self._make()
        if self._table is not None:
            self._table.follow(quota)
        self._tokens = quota.input_tokens_per_day is not None or quota.output_tokens_per_day is not None

    def choose(self, call: Call) -> bool:
        table = self._table
        if table is None or call.asked.id in self._entered:
            return True
        try:
            table.enter()
        except NeedsGrant as need:
            self._wait(need.what, partial(_go_on, call))
            return False
        self._entered.add(call.asked.id)
        return True

    def ended(self, call: CallResult, status: int, outcome: str) -> None:
        table, asked, sent = self._table, call.asked.id, call.route.tries > 0
        if table is not None and asked in self._entered:
            self._entered.discard(asked)
            table.leave(sent=sent)
            if self._tokens and sent:  # also what an engine sampled for a client that has left
                given, sampled = usage_of(call.reply.body())
                table.spend(given or 0, sampled or 0)

    async def enter(self) -> QuotaTable | None:
        """Count a request that is passed through; the table's ``leave`` must follow. None: they are not counted.
        Raises ``RequestRefused``.
        """
        table = self._table
        while table is not None:
            wanted = ""
            try:
                table.enter()
            except NeedsGrant as need:  # compiled code must not wait while an exception leaves
                wanted = need.what
            if not wanted:
                break
            told: asyncio.Future[RequestRefused | None] = asyncio.get_running_loop().create_future()
            self._wait(wanted, partial(_tell, told))
            refused = await told
            if refused is not None:
                raise refused
        return table

    def close(self) -> None:
        if self._table is not None:
            self._table.close()

    def _wait(self, what: str, waiter: Waiter) -> None:
        self._waiting.setdefault(what, []).append(waiter)
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
        if granted and self._table is not None:
            self._table.grant(what, granted)
        for waiter in waiting:
            waiter(self._refused(what, granted))

    def _refused(self, what: str, granted: int | None) -> RequestRefused | None:
        """Why one that waited is refused. None: it tries again. ``granted`` None: nobody answered."""
        table = self._table
        assert table is not None  # it said that it needs more
        limit: int | None = getattr(table.quota, what)
        if granted or limit is None:  # the limit was lifted meanwhile
            return None
        if granted is None and table.go_unchecked(what):
            self._metrics.add(UNCHECKED_METRIC)
            return None
        return refusal(what, limit, until_midnight() if granted == 0 else 1.0)


def _tell(told: asyncio.Future[RequestRefused | None], refused: RequestRefused | None) -> None:
    if not told.done():
        told.set_result(refused)


def _go_on(call: Call, refused: RequestRefused | None) -> None:
    if refused is None:
        call.go_on()
    else:
        call.refuse(refused)
