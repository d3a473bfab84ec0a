from __future__ import annotations

import asyncio
import email.utils
import time

import httpx
import pytest
from aiohttp import web
from pydantic import ValidationError
from tests.support.served import Served

from slipstream.settings import JudgeConfig
from slipstream_judge.model.budget import Budget, OverBudget
from slipstream_judge.model.llm import JudgeFailed, Llm, OutOfQuota, PromptRefused, TooLong, Usage, retry_after
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_judge.text.excerpts import Shortening, Shown
from slipstream_judge.text.prompt import build

PROMPT = build(Shown("", ["| QUALITY 0.5"], 5, Shortening()), ["e1"], "r", "absolute")


def make(ruled, model="openai/gpt-4o-mini", **more):
    judge = JudgeConfig(model=model, api_base=ruled.url, **more)
    metrics = JudgeMetrics()
    return Llm(judge, Budget(judge, metrics), metrics)


async def ask(llm, seconds=60.0):
    return await llm.ask(PROMPT.messages, PROMPT.schema, time.time() + seconds)


def counted(llm, outcome):
    return llm.metrics.calls.labels(outcome)._value.get()


async def test_a_call_with_a_schema_its_tokens_and_its_cost(ruled):
    llm = make(ruled, params={"max_tokens": 500})
    answer = await ask(llm)
    sent = ruled.requests[0]
    assert sent["response_format"]["json_schema"]["schema"]["required"] == ["e1"]
    assert (sent["temperature"], sent["model"]) == (0.0, "gpt-4o-mini")
    assert sent.get("max_tokens", sent.get("max_completion_tokens")) == 500
    assert '"e1"' in answer.text and answer.refusal is None
    assert answer.usage.prompt_tokens > 0 and answer.usage.completion_tokens == 20
    assert answer.usage.cost > 0 and answer.usage.seconds > 0
    assert llm.budget.spent.tokens == answer.usage.tokens


async def test_a_model_that_no_list_knows_is_asked_for_a_schema_and_has_no_known_price(ruled):
    answer = await ask(make(ruled, "openai/some-local-model"))
    assert ruled.requests[0]["response_format"]["type"] == "json_schema"
    assert answer.usage.cost is None


def formats(ruled):
    return [(r.get("response_format") or {}).get("type") for r in ruled.requests]


@pytest.mark.parametrize(
    "refusal", [(400, "response_format.type"), (500, "failed to parse grammar"), (422, "json_schema")]
)
async def test_a_server_that_refuses_a_schema_is_asked_for_json_and_then_in_words(ruled, refusal):
    status, words = refusal
    ruled.faults.extend([{"status": status, "body": words}] * 3)
    llm = make(ruled, "hosted_vllm/some-local-model")
    await ask(llm)
    await ask(llm)
    assert formats(ruled) == ["json_schema", "json_schema", "json_object", None, None]
    near, plain = (
        r["response_format"]["json_schema"]["schema"]["properties"]["e1"]["properties"] for r in ruled.requests[:2]
    )
    assert near == {
        "reason": {"type": "string", "maxLength": 400},
        "score": plain["score"] | {"minimum": 0, "maximum": 1},
    }
    assert plain["reason"] == {"type": "string"}


async def test_a_response_format_of_the_settings_is_sent_in_place_of_the_schema(ruled):
    llm = make(ruled, params={"response_format": {"type": "json_object"}})
    await ask(llm)
    ruled.refuses = {"response_format"}
    await ask(llm)
    assert formats(ruled) == ["json_object", "json_object", None]


async def test_a_template_without_a_system_role_gets_one_message(ruled):
    ruled.faults.append({"status": 400, "body": "System role not supported"})
    await ask(make(ruled))
    assert [[m["role"] for m in r["messages"]] for r in ruled.requests] == [["system", "user"], ["user"]]
    assert ruled.seen[-1].asked == ["e1"]


async def test_a_server_that_loads_its_model_is_not_the_group_s_fault(ruled):
    ruled.always = {"status": 503, "body": "Loading model"}
    with pytest.raises(JudgeFailed) as caught:
        await ask(make(ruled))
    assert caught.value.retry_after


@pytest.mark.parametrize(
    "error",
    [
        (500, "Context size has been exceeded."),
        (400, "request (4390 tokens) exceeds the available context size (4096 tokens), try increasing it"),
        (400, "the prompt exceeds the context window"),
        (400, "Requested tokens (2285) exceed context window of 2048"),
    ],
)
async def test_local_servers_say_in_many_ways_that_a_prompt_is_too_long(ruled, error):
    ruled.always = {"status": error[0], "body": error[1]}
    with pytest.raises(TooLong):
        await ask(make(ruled, "hosted_vllm/some-local-model"))


async def test_a_server_with_one_slot_is_asked_one_call_at_a_time_before_any_group_fails(ruled):
    """Eight groups at once, each 0.6 s of one slot, and 2.5 s for a call: in order the last would end after 4.8 s."""
    ruled.slots = asyncio.Semaphore(1)
    ruled.latency = 0.6
    llm = make(ruled, "hosted_vllm/some-local-model", timeout=2.5)
    llm.look = lambda: asyncio.sleep(0)
    answers = await asyncio.gather(*(ask(llm) for _ in range(8)))
    assert len(answers) == 8 and llm.limit < llm.most


async def test_a_call_that_is_slow_alone_gets_more_time(ruled):
    ruled.latency = 1.5
    llm = make(ruled, timeout=1.0, concurrency=1)
    assert (await ask(llm)).text and llm.patience == 2.0


async def test_quick_calls_let_more_run_at_once_again(ruled):
    llm = make(ruled, concurrency=4)
    llm.limit = 1
    for _ in range(20):
        await ask(llm)
    assert 2 <= llm.limit <= llm.most


async def test_an_answer_in_the_thoughts_is_read_where_it_is_all_json(ruled, monkeypatch):
    monkeypatch.setattr(ruled, "_judge", lambda read: {"scores": []})
    ruled.faults.extend(["thought", "thoughts"])
    llm = make(ruled, "hosted_vllm/some-local-model")
    assert (await ask(llm)).text == '{"scores": []}'
    assert (await ask(llm)).text == ""


@pytest.mark.parametrize(
    ("model", "name", "value"), [("openai/gpt-4o-mini", "top_p", 0.5), ("openai/o3-mini", "reasoning_effort", "low")]
)
async def test_more_parameters_go_to_the_model(ruled, model, name, value):
    await ask(make(ruled, params={name: value}, model=model))
    assert ruled.requests[0][name] == value


async def test_a_parameter_of_its_own_is_refused_by_name(ruled):
    with pytest.raises(ValidationError, match=r"timeout: set judge\.timeout"):
        make(ruled, params={"timeout": 1.0})
    with pytest.raises(ValidationError, match="the judge sets it itself"):
        make(ruled, params={"stream": True})


async def test_one_more_parameter_that_the_model_refuses_is_dropped(ruled):
    ruled.refuses = {"top_p"}
    llm = make(ruled, params={"top_p": 0.5})
    await ask(llm)
    assert ["top_p" in r for r in ruled.requests] == [True, False]


@pytest.mark.parametrize("name", ["temperature"])
async def test_a_parameter_that_the_model_refuses_is_dropped_for_good(ruled, name):
    ruled.refuses = {name}
    llm = make(ruled)
    await ask(llm)
    await ask(llm)
    assert [name in r for r in ruled.requests] == [True, False, False]


async def test_retry_after_is_waited_for(ruled):
    ruled.faults.append({"status": 429, "headers": {"Retry-After": "1"}})
    llm = make(ruled)
    began = time.monotonic()
    await ask(llm)
    assert time.monotonic() - began >= 0.99
    assert len(ruled.requests) == 2 and counted(llm, "rate_limited") == 1


async def test_a_retry_after_beyond_the_deadline_gives_the_group_back(ruled):
    ruled.always = {"status": 429, "headers": {"Retry-After": "500"}}
    llm = make(ruled)
    with pytest.raises(JudgeFailed) as caught:
        await ask(llm)
    assert 490 < caught.value.retry_after <= 500
    with pytest.raises(JudgeFailed):  # the next one is not even sent
        await ask(llm)
    assert len(ruled.requests) == 1


async def test_rate_limits_without_a_time_are_tried_again(ruled):
    ruled.faults.append({"status": 429})
    assert (await ask(make(ruled))).text
    assert len(ruled.requests) == 2


async def test_server_errors_and_timeouts_are_tried_twice_more(ruled):
    ruled.faults.extend([{"status": 500}, {"sleep": 15.0}])
    llm = make(ruled, timeout=3.0)
    assert (await ask(llm)).text
    assert len(ruled.requests) == 3 and counted(llm, "timeout") == 1 and counted(llm, "error") == 1


async def test_a_judge_that_only_fails_fails(ruled):
    ruled.always = {"status": 500}
    with pytest.raises(JudgeFailed) as caught:
        await ask(make(ruled))
    assert caught.value.retry_after is None
    assert len(ruled.requests) == 3


async def test_an_overloaded_server_that_says_when_is_waited_for(ruled):
    ruled.faults.append({"status": 503, "headers": {"Retry-After": "0.2"}})
    llm = make(ruled)
    assert (await ask(llm)).text
    assert len(ruled.requests) == 2


async def test_a_wrong_key_is_not_the_group_s_fault(ruled):
    ruled.always = {"status": 401}
    with pytest.raises(JudgeFailed) as caught:
        await ask(make(ruled))
    assert caught.value.retry_after and len(ruled.requests) == 1


async def test_no_connection_is_not_the_group_s_fault(ruled):
    with Served(ruled.app().__class__()) as gone:
        pass
    ruled.url = gone + "/v1"
    with pytest.raises(JudgeFailed) as caught:
        await ask(make(ruled))
    assert caught.value.retry_after


async def test_a_prompt_beyond_the_context(ruled):
    ruled.context = 10
    with pytest.raises(TooLong):
        await ask(make(ruled))


async def test_a_content_policy_is_a_refusal(ruled):
    ruled.always = {"status": 400, "body": "rejected: content_policy_violation"}
    with pytest.raises(PromptRefused):
        await ask(make(ruled))


@pytest.mark.parametrize("model", ["openai/gpt-4o-mini", "hosted_vllm/some-model"])
@pytest.mark.parametrize(
    ("code", "raised"),
    [
        ("content_policy_violation", PromptRefused),
        ("insufficient_quota", OutOfQuota),
        ("context_length_exceeded", TooLong),
    ],
)
async def test_an_error_is_known_by_its_code_where_its_words_say_nothing(ruled, model, code, raised):
    ruled.always = {"status": 400, "body": "The request was rejected.", "code": code}
    with pytest.raises(raised):
        await ask(make(ruled, model))


async def test_refusals_in_the_answer(ruled):
    ruled.faults.extend(["refusal", "filter"])
    llm = make(ruled)
    assert (await ask(llm)).refusal == "I cannot help with that."
    assert (await ask(llm)).refusal


async def test_the_key_comes_from_the_environment(ruled, monkeypatch):
    monkeypatch.setenv("THE_KEY", "secret")
    assert make(ruled, api_key_env="THE_KEY")._arguments([], {})["api_key"] == "secret"


async def test_local_servers_take_any_key_and_other_providers_keep_their_own(ruled):
    assert make(ruled)._arguments([], {})["api_key"] == make(ruled, "gpt-4o")._arguments([], {})["api_key"] == "none"
    assert "api_key" not in make(ruled, "anthropic/claude-sonnet-4-5")._arguments([], {})


async def test_a_dollar_budget_without_a_price_is_told_once(ruled, caplog):
    llm = make(ruled, "openai/some-local-model", dollars_per_day=1.0)
    await ask(llm)
    await ask(llm)
    assert caplog.text.count("knows no price") == 1


async def test_budgets_are_asked_before_each_call(ruled):
    llm = make(ruled, calls_per_minute=1)
    await ask(llm)
    with pytest.raises(OverBudget):
        await ask(llm, seconds=1)
    assert len(ruled.requests) == 1


def test_no_model():
    with pytest.raises(JudgeFailed):
        Llm(JudgeConfig(), Budget(JudgeConfig(), JudgeMetrics()), JudgeMetrics())


def test_retry_after_is_read_in_all_its_forms():
    assert retry_after({"Retry-After": "3"}) == 3
    assert retry_after({"retry-after": "1.5"}) == 1.5
    assert retry_after({"retry-after-ms": "250", "retry-after": "1"}) == 0.25
    later = email.utils.formatdate(time.time() + 100, usegmt=True)
    assert 95 < retry_after({"Retry-After": later}) <= 100
    assert retry_after({"Retry-After": email.utils.formatdate(0, usegmt=True)}) == 0
    assert retry_after({"Retry-After": "soon"}) is None
    assert retry_after({}) is None and retry_after(None) is None


def test_usage_adds_up_and_an_unknown_price_stays_unknown():
    total = Usage()
    total.add(Usage(1, 2, 0.5, 1.0, 1))
    assert (total.tokens, total.cost, total.calls) == (3, 0.5, 1)
    total.add(Usage(1, 2, None, 1.0, 1))
    assert total.cost is None and total.seconds == 2.0


NO_QUOTA_LEFT = {"status": 429, "body": "You exceeded your current quota, please check your plan and billing details."}


async def test_an_api_without_quota_is_asked_after_growing_pauses_alone(ruled, caplog):
    ruled.always = NO_QUOTA_LEFT
    llm = make(ruled)
    asked = []
    for _ in range(540):  # nine minutes, a question each second
        with pytest.raises(OutOfQuota) as e:
            await ask(llm)
        assert e.value.retry_after
        asked.append(len(ruled.requests))
        llm._quota_until -= 1
    assert asked[0] == asked[29] == 1 and asked[-1] == 5, "at 0, 30, 90, 210 and 450 seconds"
    assert caplog.text.count("no quota left") == 5
    ruled.always = None
    llm._quota_until = 0.0
    assert (await ask(llm)).text and llm.out_of_quota is None
    assert (await ask(llm)).text


@pytest.mark.parametrize(
    "fault", [{"status": 402, "body": "Payment Required"}, {"status": 400, "body": "Your credit balance is too low"}]
)
async def test_quota_is_known_by_its_words_or_status(ruled, fault):
    ruled.always = fault
    with pytest.raises(OutOfQuota):
        await ask(make(ruled))


async def test_a_rate_limit_is_no_quota(ruled):
    ruled.faults.append({"status": 429, "body": "Rate limit reached for requests", "headers": {"retry-after": "0"}})
    llm = make(ruled)
    await ask(llm)
    assert llm.out_of_quota is None and len(ruled.requests) == 2


@pytest.mark.parametrize("model", ["openai/gpt-4o-mini", "anthropic/claude-x", "ollama_chat/x", "hosted_vllm/x"])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_what_redirects_sends_neither_the_conversation_nor_the_key_elsewhere(model, status):
    met = []

    async def elsewhere(request: web.Request) -> web.Response:
        met.append(request.path)
        return web.json_response({})

    away = web.Application()
    away.router.add_route("*", "/{all:.*}", elsewhere)
    app = web.Application()
    with Served(away) as url:

        async def redirect(request: web.Request) -> web.Response:
            return web.Response(status=status, headers={"location": url + request.path})

        app.router.add_route("*", "/{all:.*}", redirect)
        with Served(app) as base:
            judge = JudgeConfig(model=model, api_base=base, timeout=5.0)
            llm = Llm(judge, Budget(judge, JudgeMetrics()), JudgeMetrics())
            llm.key = "sk-test"
            with pytest.raises(JudgeFailed, match=f"redirects .status {status}.*judge.api_base"):
                await ask(llm)
            assert met == []
            async with httpx.AsyncClient(follow_redirects=True, trust_env=False) as own:
                assert (await own.get(base + "/own")).status_code == 200
    assert met == ["/own"], "a program's own clients follow as before"
