"""RULER without a proxy: ``ruler_score`` on lists of messages, and a replay's replies side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from statistics import pstdev
from typing import NamedTuple, TypeAlias

from slipstream.config import load_config
from slipstream.contract import Group
from slipstream.errors import ConfigError
from slipstream_judge.compare.group import GroupJudge
from slipstream_judge.compare.rubric import Rubrics
from slipstream_judge.compare.ruler import Ruler
from slipstream_judge.loop import run_loop
from slipstream_judge.model.budget import Budget
from slipstream_judge.model.cache import VoteCache
from slipstream_judge.model.llm import Llm
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_judge.text.bare_groups import make_episode, make_group

Messages: TypeAlias = Sequence[Mapping[str, object]]


class RulerScore(NamedTuple):
    """One run's score from 0 to 1. ``votes``: each vote's score; ``spread``: their standard deviation."""

    score: float
    reason: str
    votes: list[float]
    spread: float


async def ruler_score(
    runs: Sequence[Messages],
    model: str,
    *,
    rubric: str | None = None,
    tools: Sequence[Mapping[str, object]] = (),
    votes: int = 1,
    seconds: float = 600.0,
    **settings: object,
) -> list[RulerScore]:
    """Compare runs of one task and score them, in the order given.

    Args:
        runs: the messages of each run, the agent's replies among them. Messages of Chat Completions, Responses items
            and Anthropic's messages all work.
        model: any model that LiteLLM knows.
        rubric: text, or a path to a file with it. None: the default rubric.
        tools: definitions of the tools that every run had.
        votes: calls for each group, each in another order.
        seconds: after this time the call fails.
        settings: any other setting of ``[judge]``, as ``api_base`` or ``params``.

    Raises:
        ConfigError: a setting is unknown or has a wrong value, or a run is no list of messages.
        JudgeFailed: the model gave no answer that can be used.

    Source: RULER, https://art.openpipe.ai/fundamentals/ruler

    """
    base = {"judge": {"model": model, "rubric": rubric, "votes": votes} | settings}
    judge = load_config(env={}, base=base).judge
    if judge.function is not None:
        raise ConfigError("judge.function: ruler_score asks the model; call your function yourself")
    metrics = JudgeMetrics()
    ruler = Ruler(judge, Llm(judge, Budget(judge, metrics), metrics), metrics)
    scorer = GroupJudge(judge, ruler, Rubrics(judge), VoteCache(None, metrics), metrics)
    judged = await scorer.score(_group(runs, tools), time.time() + seconds)
    found = {s.episode: s for s in judged.scores}
    ordered = [found[f"run-{n}"] for n in range(len(runs))]
    return [RulerScore(s.value, s.reason, list(s.values), pstdev(s.values)) for s in ordered]


def _group(runs: Sequence[Messages], tools: Sequence[Mapping[str, object]]) -> Group:
    episodes = []
    for n, messages in enumerate(runs):
        usable = isinstance(messages, Iterable) and not isinstance(messages, str | Mapping)
        if not usable or not all(isinstance(m, Mapping) for m in messages):
            fix = "give each run as [{'role': …, 'content': …}, …]"
            raise ConfigError(f"runs[{n}] is no list of messages: {fix}")
        call = {"messages": [dict(m) for m in messages], "tools": [dict(t) for t in tools]}
        episodes.append(make_episode(f"run-{n}", None, [call]))
    return make_group("runs", episodes)


def ruler_score_sync(runs: Sequence[Messages], model: str, **settings: object) -> list[RulerScore]:
    """``ruler_score`` for code without an event loop. Raises ``ConfigError`` where one runs, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_loop(ruler_score(runs, model, **settings))  # type: ignore[arg-type]
    raise ConfigError("an event loop runs here already: use `await ruler_score(…)`")
