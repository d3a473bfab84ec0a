"""What the judge knows of a near server: that it is near, how much context it serves, and that nothing was cut."""

from __future__ import annotations

import os

import pytest
from tests.support.ruler import make, runs_of, scores, vote

from slipstream.settings import JudgeConfig
from slipstream_judge.model.budget import Budget
from slipstream_judge.model.llm import Llm
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_judge.model.server import OwnProxy, base_of, bypass, is_near
from slipstream_judge.text.excerpts import estimate

VLLM = {"/v1/models": {"data": [{"id": "m", "max_model_len": 3000}]}}
LLAMA = {"/props": {"default_generation_settings": {"n_ctx": 3000}, "total_slots": 1}, "/v1/models": {"data": []}}
STUDIO = {"/api/v0/models": {"data": [{"id": "m", "loaded_context_length": 3000, "max_context_length": 131072}]}}
OLLAMA = {"/api/ps": {"models": [{"name": "m:latest", "context_length": 3000}]}}


@pytest.mark.parametrize("tells", [VLLM, LLAMA, STUDIO, OLLAMA], ids=["vllm", "llama.cpp", "lm studio", "ollama"])
async def test_no_prompt_is_longer_than_the_server_holds_whatever_judge_context_says(ruled, tells):
    """12,000 tokens of four runs, a server of 3,000, and ``judge.context`` at its default."""
    ruled.tells, ruled.cuts = tells, 4 * 3000
    runs, truth = runs_of([0.1, 0.9, 0.4, 0.6], filler="{n} word" * 1100)
    found = await vote(make(ruled, "hosted_vllm/m"), runs)
    assert scores(found) == pytest.approx(truth, abs=1e-3)
    kept = [sum(estimate(m["content"]) for m in r["messages"]) for r in ruled.requests[tells is OLLAMA :]]
    assert max(kept) < 3000


async def test_a_server_that_says_nothing_and_cuts_is_found_out_by_its_count(ruled):
    ruled.cuts = 4 * 2500
    runs, truth = runs_of([0.1, 0.9], filler="{n} word" * 6000)
    found = await vote(make(ruled, "hosted_vllm/m"), runs)
    assert scores(found) == pytest.approx(truth, abs=1e-3)


async def test_a_server_with_slots_is_asked_as_much_at_once(ruled):
    ruled.tells = LLAMA
    ruler = make(ruled, "hosted_vllm/m")
    await vote(ruler, runs_of([0.1, 0.9])[0])
    assert ruler.llm.limit == ruler.llm.most == 1


async def test_ollama_is_asked_for_a_context_and_is_not_taken_to_hold_more(monkeypatch, ruled):
    ruler = make(ruled, "ollama_chat/m")
    assert ruler.llm._arguments([], {})["num_ctx"] == 16_384
    assert (await ruler.llm.look()).context == 16_384
    ruler = make(ruled, "ollama_chat/m", params={"num_ctx": 8192})
    assert ruler.llm._arguments([], {})["num_ctx"] == (await ruler.llm.look()).context == 8192


@pytest.mark.parametrize(
    "near",
    [
        "http://127.0.0.1:8001/v1",
        "http://[::1]:1",
        "http://localhost",
        "10.1.2.3:80",
        "http://192.168.0.9/v1",
        "http://172.17.0.1",
        "http://ollama:11434",
        "http://gpu.local/v1",
        "http://llm.judge.svc:8000",
        "http://host.docker.internal",
    ],
)
def test_near(near):
    assert is_near(near)


@pytest.mark.parametrize("far", [None, "", "https://api.openai.com/v1", "http://8.8.8.8", "https://judge.example.org"])
def test_far(far):
    assert not is_near(far)


async def test_a_near_judge_is_reached_whatever_proxy_is_set_and_a_far_one_through_it(ruled, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "example.org")
    runs, truth = runs_of([0.1, 0.9])
    for model in ("openai/ruled", "hosted_vllm/ruled"):
        assert scores(await vote(make(ruled, model), runs)) == truth
    assert os.environ["NO_PROXY"].split(",") == os.environ["no_proxy"].split(",") == ["example.org", "127.0.0.1"]
    make(ruled, "openai/gpt-4o-mini").llm.judge.api_base = None
    assert "api.openai.com" not in os.environ["NO_PROXY"]


def test_a_bypass_leaves_what_is_set(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("no_proxy", "a.example, b.example")
    bypass("http://gpu-box:8000/v1")
    assert (os.environ["NO_PROXY"], os.environ["no_proxy"]) == ("*", "a.example,b.example,gpu-box")


def test_where_litellm_sends_a_model_s_calls(monkeypatch):
    monkeypatch.delenv("OLLAMA_API_BASE", raising=False)
    assert base_of("ollama_chat/qwen3", None) == "http://localhost:11434"
    assert base_of("ollama/qwen3", "http://gpu:1") == "http://gpu:1"
    monkeypatch.setenv("HOSTED_VLLM_API_BASE", "http://gpu:8000/v1")
    assert base_of("hosted_vllm/m", None) == "http://gpu:8000/v1"
    assert base_of("anthropic/claude", None) is base_of("gpt-5-mini", None) is None


async def test_a_variable_that_connects_agents_does_not_lead_the_judge_to_its_own_proxy(monkeypatch, control):
    """README connects an agent by OPENAI_BASE_URL, and LiteLLM reads the same one."""
    own = OwnProxy(control.url, None, "")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{control.url.replace('127.0.0.1', 'localhost')}/v1")
    monkeypatch.setenv("ANTHROPIC_API_BASE", control.url)
    monkeypatch.setenv("OTHER_BASE_URL", "http://127.0.0.1:1/v1")
    judge = JudgeConfig(model="openai/gpt-4o-mini")
    assert base_of(str(judge.model), None)
    metrics = JudgeMetrics()
    llm = Llm(judge, Budget(judge, metrics), metrics, own=own)
    assert llm.base is None, "the provider's own address"
    assert not {"OPENAI_BASE_URL", "ANTHROPIC_API_BASE"} & os.environ.keys() and "OTHER_BASE_URL" in os.environ
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert Llm(judge, Budget(judge, metrics), metrics, own=own).base == "http://127.0.0.1:1/v1"
