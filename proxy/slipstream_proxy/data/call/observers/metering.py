"""What a call that has ended adds to the metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from slipstream_proxy.data.call.step import CallStep

if TYPE_CHECKING:
    from slipstream_proxy.data.call.result import CallResult
    from slipstream_proxy.data.observe.metrics import WorkerMetrics

_now: Final[Callable[[], float]] = time.time


class Metering(CallStep):
    """Counts calls, and measures how long they took and where."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics

    def ended(self, call: CallResult, status: int, outcome: str) -> None:
        metrics, asked, route, reply = self._metrics, call.asked, call.route, call.reply
        pin, episode, started = route.pin, asked.episode, asked.started
        adapter = pin.adapter if pin is not None else "external" if asked.target.kind == "upstream" else "base"
        tags = episode.tags if episode is not None else None
        own = metrics.count(asked.dialect.name, outcome, status // 100, adapter, tags)
        now = _now()
        own.call.observe(now - started)
        if reply.first is not None:
            own.first.observe(reply.first - started)
            if reply.replied:
                metrics.upstream.observe(reply.replied - route.forwarded)
                metrics.overhead.observe(route.forwarded - started + now - reply.replied)
                if reply.stream and reply.count > 1:
                    own.chunk.observe((reply.replied - reply.first) / (reply.count - 1))
