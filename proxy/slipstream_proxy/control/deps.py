"""What the control plane's handlers need. ``run.worker`` makes it once."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipstream.contract.status import Space
from slipstream_proxy.control.observe.activity import SidecarActivity
from slipstream_proxy.control.observe.audit import AuditTrail
from slipstream_proxy.control.observe.plugins import PluginBoard
from slipstream_proxy.control.observe.schedule import TrainingSchedule
from slipstream_proxy.control.observe.training_switch import TrainingSwitch
from slipstream_proxy.control.shared.shares import KeyShares
from slipstream_proxy.control.storage.access import StoreAccess
from slipstream_proxy.control.storage.feed import EndlessReplies, Feed
from slipstream_proxy.control.storage.mutation_log import Together

if TYPE_CHECKING:
    from slipstream_proxy.control.adapters.fleet import AdapterRegistrar, Fleet
    from slipstream_proxy.control.adapters.gatekeeper import Gatekeeper
    from slipstream_proxy.control.adapters.journal import AdapterJournal
    from slipstream_proxy.control.adapters.lifecycle import AdapterLifecycle
    from slipstream_proxy.control.adapters.live_publisher import LivePublisher
    from slipstream_proxy.control.adapters.registry import AdapterRegistry
    from slipstream_proxy.control.adapters.rehearsal import RehearsalSlot
    from slipstream_proxy.control.adapters.swapper import Swapper
    from slipstream_proxy.control.adapters.trials import GateTrials
    from slipstream_proxy.control.engines.engine_lease import EngineLease
    from slipstream_proxy.control.engines.live import LiveState
    from slipstream_proxy.control.engines.pool import EnginePool
    from slipstream_proxy.control.observe.judge_board import JudgeBoard
    from slipstream_proxy.control.observe.metrics import ControlMetrics
    from slipstream_proxy.control.shared.token_text import TokenTexter
    from slipstream_proxy.control.storage.forgetter import Forgetter
    from slipstream_proxy.store.values import Pin, PinAsk, RewardAsk, Standing


@dataclass(slots=True)
class Deps(StoreAccess):
    live: LiveState
    registry: AdapterRegistry
    journal: AdapterJournal
    lifecycle: AdapterLifecycle
    registrar: AdapterRegistrar
    fleet: Fleet
    trials: GateTrials
    gatekeeper: Gatekeeper
    engines: EnginePool
    lease: EngineLease
    publisher: LivePublisher
    swapper: Swapper
    metrics: ControlMetrics
    judges: JudgeBoard
    texter: TokenTexter
    forgetter: Forgetter
    rehearsals: RehearsalSlot
    audit: AuditTrail = field(init=False)
    plugins: PluginBoard = field(init=False)
    schedule: TrainingSchedule = field(init=False)
    pins: Together[PinAsk, Pin] = field(init=False)
    standings: Together[RewardAsk, Standing] = field(init=False)
    switch: TrainingSwitch = field(default_factory=TrainingSwitch)
    shares: KeyShares = field(default_factory=KeyShares)
    feed: Feed = field(default_factory=Feed)
    endless: EndlessReplies = field(default_factory=EndlessReplies)
    activity: SidecarActivity = field(default_factory=SidecarActivity)
    started: float = field(default_factory=time.time)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, after each commit: whoever waits for new events looks again."""
    last_step: float | None = None
    """When the trainer last acknowledged a batch as trained."""
    space: Space = field(default_factory=Space)
    """As it was when it was last measured (``measured_space``)."""
    space_measured: float = -math.inf
    """When that was, by the monotonic clock."""
    measuring: asyncio.Task[None] | None = None
    leasing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """No batch is leased between the moment that an ack is accepted and the one that the store has it."""

    scoring: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One post of scores at a time: what was posted under a lease is looked at before it counts."""

    def __post_init__(self) -> None:
        self.audit = AuditTrail(self, self.endless)
        self.plugins = PluginBoard(self.config, self.metrics.plugin_failed)
        self.schedule = TrainingSchedule(
            self.config.trainer.schedule, self.engines.busy, self.config.quota.trained_tokens_per_day
        )
        self.pins = Together(lambda asks: self.store.pins.pin_many(asks))  # noqa: PLW0108 - opened later
        self.standings = Together(lambda asks: self.store.standings.ask(asks, self.now()))

    def notify(self) -> None:
        """Wake whoever waits for ``changed``."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()
