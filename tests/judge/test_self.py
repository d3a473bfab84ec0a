"""``judge.model = "self"``: the agents' own engine, asked through their proxy."""

from __future__ import annotations

import asyncio
import time

import pytest
from pydantic import ValidationError
from tests.support import until
from tests.support.control import FakeControl
from tests.support.groups import quality_group
from tests.support.ruled_judge import RuledJudge
from tests.support.served import Served

from slipstream.client import AsyncClient
from slipstream.config import Config
from slipstream.errors import ConfigError
from slipstream.settings import JudgeConfig
from slipstream_judge.model.budget import Budget
from slipstream_judge.model.llm import Llm
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_judge.model.server import OwnProxy
from slipstream_judge.run import worker as worker_module
from slipstream_judge.run.worker import JudgeWorker
from slipstream_judge.text.excerpts import Shortening, Shown
from slipstream_judge.text.prompt import build


@pytest.fixture
def proxy(monkeypatch):
    """A control API and, on the same port, a model that judges; ``heads``: what its calls had in their headers."""
    monkeypatch.setattr(worker_module, "HELD_GROUP_INTERVAL_S", 0.5)
    control, ruled, heads = FakeControl(), RuledJudge(), []
    app = control.app()

    async def chat(request):
        heads.append(request.headers)
        return await ruled.chat(request)

    app.router.add_post("/v1/chat/completions", chat)
    with Served(app) as url:
        control.url = url
        yield control, ruled, heads


async def judge_until(control, config, what):
    stop = asyncio.Event()
    async with AsyncClient(control.url, "secret") as client:
        worker = JudgeWorker(config, client)
        task = asyncio.create_task(worker.run(stop))
        await until(lambda: what(worker))
        stop.set()
        await task
    return worker


def of(**judge):
    return Config.model_validate({"judge": {"model": "self"} | judge, "engine": {"name": "policy"}})


async def test_scores_count_once_two_votes_agree(proxy):
    control, ruled, heads = proxy
    control.add_groups(*(quality_group(f"g{n}", [0.1, n / 10, 0.95]) for n in range(2, 9)))
    worker = await judge_until(control, of(), lambda _: len(control.scored) == 7)
    first = [body for _, body in control.posts if body.get("failed")]
    assert first and "before its votes are known to agree" in first[0]["failed"] and first[0]["retry_after"]
    assert worker.reporter.report(0, worker.auditor.recent).between_votes.value == pytest.approx(1.0)
    assert {body["model"] for body in ruled.requests} == {"policy@base"}
    assert {body["priority"] for body in ruled.requests} == {1000} and ruled.most <= 2
    assert {h["x-slipstream-capture"] for h in heads} == {"off"} and {h["authorization"] for h in heads} == {
        "Bearer secret"
    }
    assert len(ruled.requests) == 14, "groups that were held are not asked about again"


@pytest.mark.parametrize("status", [400, 422])
async def test_an_engine_that_knows_no_priority_is_asked_without(ruled, status):
    ruled.faults.append({"status": status, "body": "Unrecognized request argument supplied: priority"})
    judge, metrics = JudgeConfig(model="self"), JudgeMetrics()
    llm = Llm(judge, Budget(judge, metrics), metrics, own=OwnProxy(ruled.url.removesuffix("/v1"), "k", "policy"))
    prompt = build(Shown("", ["| QUALITY 0.5"], 5, Shortening()), ["e1"], "r", "absolute")
    for _ in range(2):
        await llm.ask(prompt.messages, prompt.schema, time.time() + 30)
    assert [body.get("priority") for body in ruled.requests] == [1000, None, None]


async def test_a_judge_that_scores_places_and_not_runs_is_not_used_and_says_so(proxy):
    control, ruled, _ = proxy
    ruled.rule, ruled.place_bias = lambda runs, shared: dict.fromkeys(runs, 0.3), 0.5
    control.add_groups(*(quality_group(f"g{n}", [k / 10 + n / 1000 for k in range(6)]) for n in range(17)))
    worker = await judge_until(control, of(), lambda w: w.reporter.consistency.by_chance)
    assert not control.scored and "hardly more than chance" in worker.reporter.consistency.doubt()
    assert worker.reporter.report(0, worker.auditor.recent).by_chance


def test_what_can_be_set():
    assert (JudgeConfig(model="self").votes, JudgeConfig(model="self").concurrency) == (2, 1)
    assert JudgeConfig.model_validate(JudgeConfig(model="self", votes=4).model_dump()).votes == 4
    for wrong in ({"votes": 1}, {"model": "self/"}, {"model": "self/policy@3"}):
        with pytest.raises(ValidationError):
            JudgeConfig(**({"model": "self"} | wrong))
    with pytest.raises(ConfigError, match="--url"):
        Llm(config := JudgeConfig(model="self"), Budget(config, JudgeMetrics()), JudgeMetrics())


async def test_another_model_beside_it_is_asked_where_it_is():
    config = JudgeConfig(model="self/big", audit_model="openai/gpt-x", audit_share=0.5, api_base="http://elsewhere/v1")
    async with AsyncClient("http://127.0.0.1:9", "k") as client:
        worker = JudgeWorker(Config.model_validate({"judge": config.model_dump()}), client)
    own, other = worker.panel.model.ruler.llm, worker.panel.audit.ruler.llm
    assert (own.model, own.api_base, own.key) == ("hosted_vllm/big@base", "http://127.0.0.1:9/v1", "k")
    assert (other.model, other.api_base, other.own) == ("openai/gpt-x", None, False)
