"""The contract: the JSON bodies that proxy, judge, trainer and users send each other over the control API.

Every model is a body of a route under ``/slipstream/v1``; ``GET /slipstream/openapi.json`` lists them. Bulk token data
travels as Arrow IPC streams, and ``BATCH_COLUMNS`` names their columns. Times are seconds since the epoch, UTC, as
floats.
"""

from slipstream.contract.adapters import (
    MAX_LORA_RANKS,
    Adapter,
    AdapterIn,
    AdapterList,
    AdapterState,
    GateIn,
    GateReport,
    check_lora_rank,
)
from slipstream.contract.base import API, ID_PATTERN, TAG, TAG_PATTERN, Error, Finite, Headers, Id, Model, Split, Tag
from slipstream.contract.batches import BATCH_COLUMNS, BatchAck, BatchLeaseIn
from slipstream.contract.episodes import (
    CallRecord,
    Deleted,
    DoneIn,
    Episode,
    EpisodeDetail,
    EpisodePage,
    EpisodeState,
    Lineage,
    Reward,
    RewardAck,
    RewardIn,
)
from slipstream.contract.funnel import Funnel, FunnelLine
from slipstream.contract.judging import (
    CacheEntry,
    Group,
    GroupEpisode,
    GroupKind,
    GroupLease,
    GroupLeaseIn,
    JudgeAgreement,
    JudgeBacklog,
    JudgeReport,
    JudgeSpent,
    JudgeStatus,
    JudgingStatus,
    Score,
    ScoresIn,
)
from slipstream.contract.names import name_of
from slipstream.contract.sharing import EngineReleased, EngineReleaseIn, Hold, HoldIn
from slipstream.contract.status import Event, Sidecar, Sql, SqlResult, Status

__all__ = [
    "API",
    "BATCH_COLUMNS",
    "ID_PATTERN",
    "MAX_LORA_RANKS",
    "TAG",
    "TAG_PATTERN",
    "Adapter",
    "AdapterIn",
    "AdapterList",
    "AdapterState",
    "BatchAck",
    "BatchLeaseIn",
    "CacheEntry",
    "CallRecord",
    "Deleted",
    "DoneIn",
    "EngineReleaseIn",
    "EngineReleased",
    "Episode",
    "EpisodeDetail",
    "EpisodePage",
    "EpisodeState",
    "Error",
    "Event",
    "Finite",
    "Funnel",
    "FunnelLine",
    "GateIn",
    "GateReport",
    "Group",
    "GroupEpisode",
    "GroupKind",
    "GroupLease",
    "GroupLeaseIn",
    "Headers",
    "Hold",
    "HoldIn",
    "Id",
    "JudgeAgreement",
    "JudgeBacklog",
    "JudgeReport",
    "JudgeSpent",
    "JudgeStatus",
    "JudgingStatus",
    "Lineage",
    "Model",
    "Reward",
    "RewardAck",
    "RewardIn",
    "Score",
    "ScoresIn",
    "Sidecar",
    "Split",
    "Sql",
    "SqlResult",
    "Status",
    "Tag",
    "check_lora_rank",
    "name_of",
]
