"""``judge.function = "module:function"``: scores from Python.

``function(group)`` gets a ``slipstream.contract.Group`` and returns ``{episode id: score}``, where a score is a
number or ``(number, reason)``; it may be ``async``. A plain one runs in a thread. Numbers need not lie in 0 … 1: they
are a reward like any other.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Callable
from typing import Any

from slipstream.contract import Group, Score
from slipstream.shared.functions import load_function
from slipstream_judge.model.llm import JudgeFailed


class FunctionJudge:
    def __init__(self, spec: str, name: str) -> None:
        self.spec, self.name = spec, name
        self.function: Callable[[Group], Any] = load_function("judge.function", spec)

    async def score(self, group: Group) -> list[Score]:
        """A score for each episode that is not context.

        Raises ``JudgeFailed`` when the function does, or leaves one out.
        """
        began = time.monotonic()
        try:
            if inspect.iscoroutinefunction(self.function):
                answer = await self.function(group)
            else:
                answer = await asyncio.to_thread(self.function, group)
                if inspect.isawaitable(answer):
                    answer = await answer
        except Exception as e:
            raise JudgeFailed(f"{self.spec}: {type(e).__name__}: {e}"[:500]) from e
        seconds = round(time.monotonic() - began, 3)
        return [self._one(e.episode.id, answer, seconds) for e in group.episodes if not e.context]

    def _one(self, id: str, answer: Any, seconds: float) -> Score:
        try:
            given = answer[id]
            value, reason = given if isinstance(given, tuple) else (given, "")
            number = float(value)
        except (KeyError, TypeError, ValueError) as e:
            raise JudgeFailed(f"{self.spec} gave no score for episode {id}: {type(e).__name__}: {e}") from e
        if not math.isfinite(number):
            raise JudgeFailed(f"{self.spec} gave {number} for episode {id}")
        meta = {"function": self.spec, "mode": "function", "latency": seconds}
        return Score(episode=id, name=self.name, value=number, reason=str(reason), values=[number], meta=meta)
