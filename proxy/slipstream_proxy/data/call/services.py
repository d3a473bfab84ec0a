"""What a worker's calls share. ``plane.py`` makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream_proxy.data.access.admission import Admission
    from slipstream_proxy.data.call.parts import Call
    from slipstream_proxy.data.call.record import Recorder
    from slipstream_proxy.data.call.step import CallSteps
    from slipstream_proxy.data.engines.live import LiveView
    from slipstream_proxy.data.engines.pools import Pools
    from slipstream_proxy.data.observe.metrics import WorkerMetrics
    from slipstream_proxy.redaction import Redaction


class Services:
    """The collaborators of a call, and ``in_flight``, the calls that run."""

    __slots__ = (
        "admission",
        "default_model",
        "in_flight",
        "live",
        "metrics",
        "pools",
        "recorder",
        "redaction",
        "steps",
    )

    def __init__(
        self,
        *,
        admission: Admission,
        live: LiveView,
        pools: Pools,
        recorder: Recorder,
        metrics: WorkerMetrics,
        steps: CallSteps,
        default_model: str,
        redaction: Redaction | None = None,
    ) -> None:
        """``default_model`` serves calls that name none."""
        self.admission, self.live, self.pools = admission, live, pools
        self.recorder, self.metrics, self.steps = recorder, metrics, steps
        self.default_model, self.redaction = default_model, redaction
        self.in_flight: set[Call] = set()
