"""Makes the parts of a worker and puts them together. What a part needs is handed to it here.

Not compiled: a worker runs it once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from slipstream_proxy.data.access.admission import Admission
from slipstream_proxy.data.access.hosts import AllowedHosts
from slipstream_proxy.data.access.limits import Limits
from slipstream_proxy.data.access.quotas import QuotaTable
from slipstream_proxy.data.call.contexts import ChatTemplates, ContextLengths, ResponseFields
from slipstream_proxy.data.call.observers.call_log import CallLog
from slipstream_proxy.data.call.observers.metering import Metering
from slipstream_proxy.data.call.observers.tracing import make_tracing
from slipstream_proxy.data.call.record import Recorder
from slipstream_proxy.data.call.services import Services
from slipstream_proxy.data.call.step import CallStep, CallSteps
from slipstream_proxy.data.call.steps.capture import Capture
from slipstream_proxy.data.call.steps.choice import AdapterChoice
from slipstream_proxy.data.call.steps.conversation import Conversation
from slipstream_proxy.data.call.steps.guards import CpuGuard
from slipstream_proxy.data.call.steps.headers import ProxyHeaders
from slipstream_proxy.data.call.steps.quotas import Quotas
from slipstream_proxy.data.call.steps.renaming import Renaming
from slipstream_proxy.data.call.steps.replays import Replays
from slipstream_proxy.data.call.steps.trainability import Trainability
from slipstream_proxy.data.call.steps.translation import Translation
from slipstream_proxy.data.engines.control_link import ControlLink
from slipstream_proxy.data.engines.hangs import HangTable
from slipstream_proxy.data.engines.hold import Holding
from slipstream_proxy.data.engines.live import LiveView
from slipstream_proxy.data.engines.models import ModelMap
from slipstream_proxy.data.engines.pools import Pools
from slipstream_proxy.data.engines.probe import EngineProbe
from slipstream_proxy.data.episode.memory import EpisodeMemory
from slipstream_proxy.data.episode.pins import EpisodePins
from slipstream_proxy.data.episode.prompts import PromptMemory
from slipstream_proxy.data.episode.shared_table import SharedTable
from slipstream_proxy.data.episode.split_names import SplitNames
from slipstream_proxy.data.observe.losses import LossCount
from slipstream_proxy.data.observe.metrics import CAPTURE_LOST_METRIC, WorkerMetrics
from slipstream_proxy.data.routes.control import ControlRoutes
from slipstream_proxy.data.routes.handler import RequestHandler
from slipstream_proxy.data.routes.health import HealthRoutes
from slipstream_proxy.data.routes.passthrough import Passthrough
from slipstream_proxy.data.routes.taken import TakenRewards
from slipstream_proxy.data.server.connection import ServerState
from slipstream_proxy.data.server.listener import Server
from slipstream_proxy.data.wire.identity import SessionNames
from slipstream_proxy.keys import Keys
from slipstream_proxy.log.spool import SpoolWriter
from slipstream_proxy.redaction import redaction_of

if TYPE_CHECKING:
    from pathlib import Path

    from slipstream.config import Config
    from slipstream_proxy.data.routes.handler import TenantRoutes

log = logging.getLogger(__name__)


class WorkerParts:
    """What all planes of a worker share: who may call, and the connections to engines."""

    def __init__(self, config: Config, number: int, keyed: bool | None) -> None:
        proxy = config.proxy
        self.limits = Limits(config.root / "limits", proxy.workers, number)
        self.admission = Admission(Keys(config.keys_file, serving=True), self.limits, keyed)
        self.hosts = AllowedHosts(self.admission, proxy.own_names)
        timeout = proxy.upstream_timeout
        self.hangs = HangTable(timeout, config.root / "hangs" if proxy.workers > 1 else None, number)
        self.pools = Pools(config.engine, connect_timeout=proxy.connect_timeout, timeout=timeout, hangs=self.hangs)

    def close(self) -> None:
        self.pools.close()
        self.limits.close()
        self.hangs.close()


class Plane:
    """One worker's parts. Belongs to the running event loop."""

    def __init__(
        self, config: Config, number: int = 0, keyed: bool | None = None, *, first: Plane | None = None
    ) -> None:
        """``number`` tells a proxy's workers apart. ``keyed``: keys were there at its start. None: now. ``first``: the
        worker's own plane, whose ``WorkerParts`` and connections a tenant's has, too.
        """
        proxy = config.proxy
        self.config, self.number = config, number
        self._loop = asyncio.get_running_loop()
        self._last_loss = 0.0
        self.redaction = redaction_of(config)
        self.metrics = WorkerMetrics(proxy.metric_tags, self.redaction)
        self.metrics_file = config.root / "metrics" / f"data{number}.json"
        self.losses = LossCount(self.metrics_file.parent, number)
        self.metrics.set(CAPTURE_LOST_METRIC, self.losses.calls)
        self.first = first
        self.parts: WorkerParts = WorkerParts(config, number, keyed) if first is None else first.parts
        self.limits, self.admission, self.hosts = self.parts.limits, self.parts.admission, self.parts.hosts
        self.hangs, self.pools = self.parts.hangs, self.parts.pools
        self.models = ModelMap(config)
        self.live = LiveView(config, self.hangs, self._look)
        self.holding = Holding(self.live, self.metrics, proxy.upstream_timeout)
        self.link = ControlLink(config.socket, self.live)
        self.pins = EpisodePins(self.live, self.link, self.metrics)
        window = config.identity.continue_window
        self.shared = _shared_table(config.root / "conversations", window) if proxy.workers > 1 else None
        self.episodes = EpisodeMemory(
            window=window, shared=self.shared, split_names=SplitNames(config.root / "split-names")
        )
        self.prompts = PromptMemory()
        self.probe = EngineProbe(self.live, self.pools)
        self.spool = SpoolWriter(
            config.spool_dir,
            f"data{number}",
            segment_bytes=proxy.segment_bytes,
            durability=proxy.durability,
            on_lost=self._lost,
        )
        self.taken = TakenRewards(config, number, self.redaction, self.admission.keys)
        self.tracing = make_tracing(self.models.default, proxy.public_url, self.live, self.redaction)
        self.contexts = ContextLengths(config.engine, proxy.connect_timeout, self.live)
        self.templates = ChatTemplates(config.engine, proxy.connect_timeout, self.models.default, self.live)
        self.fields = ResponseFields(config.engine, proxy.connect_timeout, self.live)
        self.quotas = self._quotas() if config.tenant else None
        self.services = Services(
            admission=self.admission,
            live=self.live,
            pools=self.pools,
            recorder=Recorder(self.spool, self.metrics, self.prompts, self.redaction),
            metrics=self.metrics,
            steps=CallSteps(self._steps()),
            default_model=self.models.default,
            redaction=self.redaction,
            tenant=config.tenant,
        )
        self.services.quotas = self.quotas
        self.state: ServerState = first.state if first else ServerState(config, self.services, self.hosts)
        self.passthrough, self.control = self._routes()

    def _quotas(self) -> Quotas:
        config = self.config
        shared = config.store_url.startswith("postgres")
        place = config.root / "quota", config.proxy.workers, self.number
        quotas = Quotas(lambda: QuotaTable(config.quota, *place, shared=shared), self.link, self.metrics)
        quotas.follow(config.quota)
        return quotas

    def _routes(self) -> tuple[Passthrough, ControlRoutes]:
        config, admission = self.config, self.admission
        memory, timeout = self.pools.memory, self.state.header_timeout
        return (
            Passthrough(config, admission, self.models, self.live, self.holding, memory, self.services),
            ControlRoutes(self.link, admission, self.hosts, self.episodes, timeout, self.taken, self.redaction),
        )

    def _steps(self) -> list[CallStep]:
        """In the order in which a call meets them."""
        found: list[CallStep] = [
            Conversation(
                self.episodes,
                SessionNames(self.config.identity.headers, self.config.identity.fields),
                self.metrics,
                traceparent=self.config.identity.traceparent,
                redaction=self.redaction,
            ),
            Capture(self.models, self.live, self.prompts, self.metrics),
            Replays(),
            *([self.quotas] if self.quotas is not None else []),
            AdapterChoice(self.live, self.holding, self.pins, self.link),
            Renaming(self.config.tenant),
            Translation(self.contexts, self.templates, self.fields, own_responses=self.config.engine.own_responses),
            Metering(self.metrics),
        ]
        if self.config.engine.cpu:
            found.append(CpuGuard())
        if logging.getLogger(CallLog.__module__).isEnabledFor(logging.DEBUG):
            found.append(CallLog())
        if self.tracing is not None:
            found.append(self.tracing)
        return [*found, ProxyHeaders(self.live, self.config.engine.session_header), Trainability(self.live)]

    def make_server(self, tenants: TenantRoutes | None = None) -> Server:
        """What accepts connections, for ``loop.create_server``."""
        limit = self.state.header_limit
        handler = RequestHandler(
            self.state,
            health=HealthRoutes(self.state, self.live, self.metrics, self.metrics_file, self.link, self.hosts, tenants),
            control=self.control,
            passthrough=self.passthrough,
            tenants=tenants,
            hosts=self.hosts,
        )
        return Server(
            self.state,
            handler,
            access_log=None,
            handler_cancellation=True,
            lingering_time=2.0,
            max_line_size=limit,
            max_field_size=limit,
            max_headers=limit // 4,
            read_bufsize=256 * 1024,
        )

    def _look(self) -> None:
        """What is live has changed."""
        self.holding.look()
        self.probe.look()

    def _lost(self, count: int, error: BaseException) -> None:
        self.losses.add(count, error)
        self.metrics.set(CAPTURE_LOST_METRIC, self.losses.calls)
        now = self._loop.time()
        if now - self._last_loss > 1.0:
            self._last_loss = now
            log.error("capture lost: %d call(s) could not be written to the spool: %s", count, error)

    async def close(self) -> None:
        self.probe.close()
        if self.first is None:
            self.parts.close()
        if self.quotas is not None:
            self.quotas.close()
        self.pins.close()
        self.holding.close()
        self.contexts.close()
        self.templates.close()
        self.fields.close()
        await self.spool.close()
        await self.taken.close()
        await self.passthrough.close()
        await self.link.close()
        self.losses.close()
        if self.shared is not None:
            self.shared.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)


def _shared_table(path: Path, window: float) -> SharedTable | None:
    """None where there is no room for it: then the worker knows its own conversations alone."""
    try:
        return SharedTable(path, window)
    except OSError as e:
        log.error("untagged conversations go on at their own worker only: %s", e)
        return None
