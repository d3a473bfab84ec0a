"""What a call that has ended adds to the metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from slipstream_proxy.data.call.step import CallStep

if TYPE_CHECKING:
    from slipstream_proxy.data.call.result import CallResult
    from slipstream_proxy.data.observe.metrics import WorkerMetrics


class Metering(CallStep):
    """Counts calls, and measures how long they took and where."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics

    def ended(self, call: CallResult, status: int, outcome: str) -> None:
        metrics, pin, episode = self._metrics, call.pin, call.episode
        adapter = pin.adapter if pin is not None else "external" if call.target.kind == "upstream" else "base"
        tags = episode.tags if episode is not None else None
        own = metrics.count(call.dialect.name, outcome, status // 100, adapter, tags)
        now, started = time.time(), call.started
        own.call.observe(now - started)
        if call.first is not None:
            own.first.observe(call.first - started)
            if call.replied:
                metrics.upstream.observe(call.replied - call.forwarded)
                metrics.overhead.observe(call.forwarded - started + now - call.replied)
                if call.stream and call.reply.count > 1:
                    own.chunk.observe((call.replied - call.first) / (call.reply.count - 1))
