"""What the causes are found in, beside the store's numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from slipstream.config import Config
from slipstream.contract import Adapter, AdapterUse, FunnelLine, JudgeAgreement, ModelLearner
from slipstream.contract.funnel import Severity
from slipstream.contract.plugins import PluginStatus
from slipstream.engines.engine import NEUTRAL_SAMPLING, EngineSampling
from slipstream_proxy.control.engines.replica import AdapterOutage, FailedLoad
from slipstream_proxy.control.observe.schedule import ScheduleState
from slipstream_proxy.control.storage.identity import MissingSegments
from slipstream_proxy.data.observe.losses import Losses
from slipstream_proxy.data.observe.metrics import WorkerCounts
from slipstream_proxy.process.settings_file import SettingsNews

BLOCKS, SLOWS, REMARK = Severity


def in_the_file(model: str) -> str:
    """The setting that replaces what the engine would take."""
    values = ", ".join(f"{name} = {value:g}" for name, value in NEUTRAL_SAMPLING.items())
    return f'write [models."{model}"] with {values} into slipstream.toml'


RECENT_SECONDS = 600.0
"""For which what happened still speaks of now."""
LAG_SHOWN_S = 5.0
"""Seconds that the store is behind the spool, from which on it is said."""
SHOWN_SECONDS = 86_400.0
"""For which a loss is shown."""
RIGHT_JUDGE = "correct judge.model, judge.api_base or the judge's server"
SOON_S = 60.0
"""Seconds: what ends by itself within them needs nobody."""


@dataclass(slots=True)
class Surroundings:
    """What the funnel needs beside the store's numbers."""

    config: Config
    now: float
    engines: list[tuple[str, bool, str | None]] = field(default_factory=list)
    """(URL, whether it answers, its error)."""
    outages: list[tuple[str, AdapterOutage]] = field(default_factory=list)
    """(URL, why it takes no adapters) of the engines that are up and take none."""
    lacking: Sequence[tuple[str, str, FailedLoad]] = ()
    """(URL, adapter, why) of what an engine that is up was to have and has not."""
    loaded_somewhere: Collection[str] = ()
    """Adapters that some engine has."""
    lookups: Sequence[str] = ()
    """Why names or files of engine.urls say nothing."""
    rewrites: str | None = None
    """What engine.router makes of requests."""
    use: AdapterUse = field(default_factory=AdapterUse)
    """How calls met their adapters in the engines."""
    settings: SettingsNews | None = None
    """What changed in the settings file since the start."""
    routers: Sequence[tuple[str, Sequence[str]]] = ()
    """(URL, the engines behind it) of what is configured as one engine."""
    text_only: bool = False
    """An engine gives no token ids: then no call of any is trained on."""
    sampling: EngineSampling | None = None
    """What the engines sample with where a call says nothing; None: as the model likes."""
    candidates: list[Adapter] = field(default_factory=list)
    """Adapters that the gate has not decided on."""
    replayed: Sequence[Adapter] = ()
    """Adapters that are tried on recorded steps, or stay without a verdict of that."""
    served: Sequence[Adapter] = ()
    """The version that new episodes get, of each model."""
    slots: Sequence[Adapter] = ()
    """Versions that running episodes keep in the engines, while a newer one has no slot."""
    pins: Mapping[str, int] = field(default_factory=dict)
    """Adapter → open episodes."""
    pace: tuple[int, float] = (4, 30.0)
    """Groups that a step needs, and seconds after which fewer are enough: as the trainer asked last."""
    learners: Sequence[ModelLearner] = ()
    """The trainer that learns for each model, and those that wait."""
    trainer_silence: float = 0.0
    """Seconds since the trainer last asked for work."""
    trainer_away: bool = False
    trainer_came: bool = True
    """A trainer has asked for work since the proxy's start."""
    judge_silence: float = 0.0
    judge_away: bool = False
    judge_expected: bool = False
    """A judge is configured, or one has asked for work."""
    judge_budget: tuple[str, float] | None = None
    """The setting whose budget the judge waits for, and the seconds until it starts again."""
    judge_error: str | None = None
    judge_chance: JudgeAgreement | None = None
    """Why the judge scored nothing of late, if it failed."""
    of_plugins: Sequence[FunnelLine] = ()
    """What plug-ins say of what they do."""
    sidecars: Sequence[tuple[str, str, str]] = ()
    """The children of `slipstream up` that are in trouble: (trainer or judge, its state, what is wrong)."""
    paused: str | None = None
    """Who paused training, and why."""
    schedule: ScheduleState = field(default_factory=ScheduleState)
    """Whether the trainer's schedule is open."""
    engine_busy: str | None = None
    """What `slipstream up` says of its engine, while that does not answer."""
    engine_ended: str | None = None
    """What that engine ended with, if it was started again not long ago."""
    held: bool = False
    """The trainer has the GPU."""
    behind: str | None = None
    """What another proxy made live and this one cannot load."""
    store_error: str | None = None
    missing: MissingSegments | None = None
    lag: float = 0.0
    """Seconds that the store is behind the spool."""
    archive_error: str = ""
    """Why the oldest day could not be archived the last time; empty: it was, or none had to be."""
    losses: Losses = field(default_factory=Losses)
    workers: WorkerCounts = field(default_factory=WorkerCounts)
    refused_writes: int = 0
    """Rewards and other changes that were answered 503, because they could not be written down."""
    refused_at: float = 0.0
    """When the last of them was."""
    plugins: Sequence[PluginStatus] = ()
    lost_folders: Sequence[tuple[str, str]] = ()
    """Versions that new episodes get and whose folder is gone, and the folder."""


def is_in_trouble(name: str, around: Surroundings) -> bool:
    return any(sidecar == name for sidecar, _, _ in around.sidecars)


def sidecar_lines(name: Literal["judge", "trainer"], around: Surroundings, severity: Severity) -> Iterator[FunnelLine]:
    """What `slipstream up` knows of its process."""
    for sidecar, state, text in around.sidecars:
        if sidecar == name:
            yield FunnelLine(stage=name, cause=state, count=1, text=text, severity=severity)
