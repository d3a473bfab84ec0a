"""What a worker's calls share. ``plane.py`` makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from slipstream_proxy.data.access.admission import Admission
    from slipstream_proxy.data.call.parts import Call
    from slipstream_proxy.data.call.record import Recorder
    from slipstream_proxy.data.call.step import CallSteps
    from slipstream_proxy.data.call.steps.quotas import Quotas
    from slipstream_proxy.data.engines.live import LiveView
    from slipstream_proxy.data.engines.pools import Pools
    from slipstream_proxy.data.observe.metrics import WorkerMetrics
    from slipstream_proxy.data.wire.request import Headers
    from slipstream_proxy.keys import Key
    from slipstream_proxy.redaction import Redaction


class TenantServices(Protocol):
    """Finds the services of the tenant whose a call is."""

    @property
    def some(self) -> bool:
        """Whether there are tenants."""

    def of(self, key: Key, headers: Headers) -> Services:
        """The worker's own: it is no tenant's. Raises ``RequestRefused``."""


class Services:
    """The collaborators of a call, and ``in_flight``, the calls that run."""

    __slots__ = (
        "admission",
        "default_model",
        "in_flight",
        "live",
        "metrics",
        "pools",
        "quotas",
        "recorder",
        "redaction",
        "steps",
        "tenant",
        "tenant_fields",
        "tenants",
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
        tenant: str = "",
    ) -> None:
        """``default_model`` serves calls that name none. ``tenant``: whose they are."""
        self.tenant = tenant
        self.quotas: Quotas | None = None
        self.tenants: TenantServices | None = None
        """Of the worker's own: those of the tenant whose a call is."""
        self.tenant_fields: tuple[bytes, ...] = ()
        """Headers that may name one. Only calls that have one of them, or a tenant's key, pay for being asked."""
        self.admission, self.live, self.pools = admission, live, pools
        self.recorder, self.metrics, self.steps = recorder, metrics, steps
        self.default_model, self.redaction = default_model, redaction
        self.in_flight: set[Call] = set()

    @property
    def has_tenants(self) -> bool:
        """Whether engines serve others, too."""
        return bool(self.tenant) or (self.tenants is not None and self.tenants.some)

    def may_name_tenants(self, headers: Headers) -> bool:
        for field in self.tenant_fields:  # noqa: SIM110 - compiled, a generator costs more than the look
            if field in headers:
                return True
        return False
