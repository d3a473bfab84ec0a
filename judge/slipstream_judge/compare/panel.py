"""All judges of a configuration: the model, the function, or both, each under a reward name of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from slipstream.client import AsyncClient
from slipstream.config import Config
from slipstream.contract import Group, Score
from slipstream.errors import ConfigError
from slipstream.settings.judge import FUNCTION_REWARD_NAME
from slipstream_judge.compare.function import FunctionJudge
from slipstream_judge.compare.group import GroupJudge, Judged
from slipstream_judge.compare.next_turn import NextTurn
from slipstream_judge.compare.process import CallJudge
from slipstream_judge.compare.rubric import Rubrics
from slipstream_judge.compare.ruler import Ruler
from slipstream_judge.compare.slots import JudgeSlots, TenantSlots
from slipstream_judge.model.budget import Budget
from slipstream_judge.model.cache import VoteCache
from slipstream_judge.model.llm import Llm
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_judge.model.server import OwnProxy

BOTH_ORDERS = (0, 2)
"""Votes whose orders are each other's reverse (``ruler.orders``)."""


@dataclass(slots=True)
class PanelOutcome:
    scores: list[Score]
    judged: Judged | None = None
    """The model's, with its votes."""
    function: list[Score] = field(default_factory=list)


class Panel:
    """Raises ``ConfigError`` where there is no judge, function or rubric file, or two judges have one name."""

    def __init__(
        self,
        config: Config,
        metrics: JudgeMetrics,
        client: AsyncClient | None = None,
        *,
        rubric: str | None = None,
        name: str | None = None,
        fresh: bool = False,
        proxy: OwnProxy | None = None,
        slots: TenantSlots | None = None,
    ) -> None:
        """``slots``: those that it shares with other tenants."""
        judge = config.judge
        own = name or judge.name
        if judge.model is None and judge.function is None:
            raise ConfigError("no judge: set judge.model (a LiteLLM name) or judge.function (module:function)")
        self.metrics = metrics
        self.slots = slots or JudgeSlots(judge.concurrency).tenant()
        self.budget = Budget(judge, metrics, client)
        self.model: GroupJudge | None = None
        self.audit: GroupJudge | None = None
        self.llm: Llm | None = None
        self.function: FunctionJudge | None = None
        self.next_turn: NextTurn | None = None
        self.calls: CallJudge | None = None
        if proxy is None and client is not None:
            proxy = OwnProxy.of(config, client.url, client.http.headers.get("authorization"))
        cache = VoteCache(client, metrics, read=not fresh)
        self.rubrics = rubrics = Rubrics(judge, rubric)
        if judge.model is not None:
            llm = self.llm = Llm(judge, self.budget, metrics, own=proxy)
            if any(route.feedback for route in config.models.values()):
                self.next_turn = NextTurn(llm)
            if judge.calls:
                self.calls = CallJudge(llm, judge.context)
            ruler = Ruler(judge, llm, metrics)
            self.model = GroupJudge(judge, ruler, rubrics, cache, metrics, name=own, slots=self.slots)
        if judge.audit_model is not None and judge.audit_share > 0 and judge.model is not None:
            second = Ruler(judge, Llm(judge, self.budget, metrics, judge.audit_model, proxy), metrics)
            self.audit = GroupJudge(judge, second, rubrics, cache, metrics, name=own, slots=self.slots)
        if judge.function is not None:
            function_name = own if judge.model is None else FUNCTION_REWARD_NAME
            if judge.model is not None and own == FUNCTION_REWARD_NAME:
                why = "the function's scores have that name where a model judges too"
                raise ConfigError(f"judge.name = {own!r}: {why}")
            self.function = FunctionJudge(judge.function, function_name)

    @property
    def names(self) -> list[str]:
        """Reward names that are written."""
        return [j.name for j in (self.model, self.function) if j is not None]

    async def score(self, group: Group, deadline: float) -> PanelOutcome:
        """Raises ``JudgeFailed``, ``OverBudget``: a group is scored by all or by none."""
        scores: list[Score] = []
        if self.function is not None:
            async with self.slots:
                scores = await self._counted(self.function, group)
        orders = BOTH_ORDERS if group.both_orders else None
        judged = await self.model.score(group, deadline, orders) if self.model else None
        return PanelOutcome([*(judged.scores if judged else []), *scores], judged, scores)

    async def _counted(self, function: FunctionJudge, group: Group) -> list[Score]:
        outcome = "error"
        try:
            with self.metrics.function_seconds.time():
                scores = await function.score(group)
            outcome = "answered"
        finally:
            self.metrics.function_calls.labels(outcome).inc()
        self.metrics.episodes.labels("function").inc(len(scores))
        return scores


async def within(panel: Panel, group: Group, seconds: float, deadline: float) -> PanelOutcome:
    """``score``, for ``seconds`` at most. Raises ``TimeoutError`` too."""
    async with asyncio.timeout(seconds):
        return await panel.score(group, deadline)
