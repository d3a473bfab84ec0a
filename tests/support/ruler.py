"""RULER on runs whose order is known, beside the scripted judge."""

from __future__ import annotations

import time

from tests.support.groups import run

from slipstream.settings import JudgeConfig
from slipstream_judge.compare.ruler import Question, Ruler
from slipstream_judge.model.budget import Budget
from slipstream_judge.model.llm import Llm
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_judge.text.bare_groups import make_episode
from slipstream_judge.text.transcript import of_episode

GROUP = Question("the rubric", "group")


def make(ruled, model="openai/ruled", **more):
    judge = JudgeConfig(model=model, api_base=ruled.url, **more)
    metrics = JudgeMetrics()
    return Ruler(judge, Llm(judge, Budget(judge, metrics), metrics), metrics)


def runs_of(qualities, filler=""):
    made = [of_episode(make_episode(f"x{n}", None, run(q, filler=filler.format(n=n)))) for n, q in enumerate(qualities)]
    return {t.digest: t for t in made}, {t.digest: q for t, q in zip(made, qualities, strict=True)}


async def vote(ruler, runs, order=None, number=0, asked=GROUP):
    return await ruler.vote(runs, order or [*runs], number, asked, time.time() + 120)


def scores(vote):
    return {r: v.score for r, v in vote.grades.items()}
