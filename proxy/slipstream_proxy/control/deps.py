"""What the control plane's handlers need. ``run.worker`` makes it once."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipstream_proxy.control.observe.activity import SidecarActivity
from slipstream_proxy.control.observe.audit import AuditTrail
from slipstream_proxy.control.observe.disk_space import DiskSpace
from slipstream_proxy.control.observe.plugins import PluginBoard
from slipstream_proxy.control.observe.schedule import TrainingSchedule
from slipstream_proxy.control.observe.training_switch import TrainingSwitch
from slipstream_proxy.control.shared.shares import KeyShares
from slipstream_proxy.control.storage.access import StoreAccess
from slipstream_proxy.control.storage.feed import EndlessReplies, Feed
from slipstream_proxy.control.storage.mutation_log import Together

if TYPE_CHECKING:
    from slipstream_proxy.control.adapters.rollout import Rollout
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
    rollout: Rollout
    engines: EnginePool
    lease: EngineLease
    metrics: ControlMetrics
    judges: JudgeBoard
    texter: TokenTexter
    forgetter: Forgetter
    audit: AuditTrail = field(init=False)
    plugins: PluginBoard = field(init=False)
    space: DiskSpace = field(init=False)
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
    archive_error: str = ""
    """Why the last day that was to be archived could not be; empty: it was."""
    leasing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """No batch is leased between the moment that an ack is accepted and the one that the store has it."""

    scoring: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One post of scores at a time: what was posted under a lease is looked at before it counts."""

    def __post_init__(self) -> None:
        self.audit = AuditTrail(self, self.endless)
        self.space = DiskSpace(self.config)
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
