"""``slipstream replay --by judge``, without a proxy."""

from __future__ import annotations

import time

from slipstream.config import Config
from slipstream.settings import JudgeConfig
from slipstream_judge.compare.panel import Panel
from slipstream_judge.model.budget import OverBudget
from slipstream_judge.model.llm import JudgeFailed
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_replay.beside import groups_of_step, note
from slipstream_replay.steps import ReplayCase


class SideBySide:
    """``slipstream replay --by judge``: the judge of a configuration on both sides' replies to one prompt.

    Raises ``ConfigError``: there is no judge.
    """

    def __init__(self, judge: JudgeConfig) -> None:
        self.panel = Panel(Config(judge=judge), JudgeMetrics())
        self.seconds = judge.timeout * 4

    async def case(self, case: ReplayCase) -> None:
        """Score each step. Raises ``ValueError`` where the judge gives no scores."""
        for step in case.steps:
            for group in groups_of_step(case, step, f"replay-{step.call.id}"[:120]):
                try:
                    judged = await self.panel.score(group, time.time() + self.seconds)
                except (JudgeFailed, OverBudget) as e:
                    raise ValueError(f"the judge gave no scores: {e}"[:300]) from e
                note(step, group, judged.scores)
