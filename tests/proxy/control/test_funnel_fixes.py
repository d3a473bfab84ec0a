from __future__ import annotations

import pytest

from slipstream_proxy.control.status.causes.training import fix_untrainable
from slipstream_proxy.dialects import messages, responses, sampling
from slipstream_proxy.dialects.base import AsAsked
from slipstream_proxy.dialects.untrainable import OWN_ROUTE_TEXT, TRUST_ADVICE, UntrainableReason, find_reason
from slipstream_proxy.store.conversation.call_rows import left_out_reason

ROUTED = [reason for reason in UntrainableReason if reason.fix.startswith(OWN_ROUTE_TEXT)]


@pytest.mark.parametrize("reason", UntrainableReason)
@pytest.mark.parametrize("detail", ["title", "web_search", "a: b (c)", "", "[x]\n{}"])
def test_what_is_stored_of_a_reason_is_read_again_with_its_fix(reason, detail):
    text = reason.of(detail)
    found = find_reason(text)
    assert found is not None and found.reason.of(found.detail) == text
    assert found.fix and found.fix == reason.fix.replace("{}", detail)


def test_texts_of_an_older_store_are_known():
    for text, reason in (
        ("temperature 0.0", UntrainableReason.TEMPERATURE_0),
        ("the engine refused it as a chat completion", UntrainableReason.ENGINE_REFUSED),
        ("a hosted tool: web_search_20250305", UntrainableReason.HOSTED_TOOL),
        ("vllm_xargs was asked", UntrainableReason.ASKED),
        ("a title call", UntrainableReason.KIND),
        ("structured output: text.format", UntrainableReason.STRUCTURED_FIELD),
        ("structured output", UntrainableReason.STRUCTURED),
        ("top_k", UntrainableReason.TOP_K),
    ):
        assert find_reason(text).reason is reason
    assert find_reason("something new") is None


def test_trust_is_no_fix_of_a_call_without_tokens():
    assert len(ROUTED) > 20
    assert not [reason for reason in ROUTED if TRUST_ADVICE in reason.fix]


@pytest.mark.parametrize(
    ("body", "mended"),
    [
        ({"temperature": 0}, {"temperature": 1.0}),
        ({"presence_penalty": 1}, {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}),
        ({"logit_bias": {"1": 5}}, {"logit_bias": None}),
        ({"min_tokens": 3}, {"min_tokens": None}),
        ({"ignore_eos": True}, {"ignore_eos": None}),
        ({"use_beam_search": True}, {"use_beam_search": None}),
        ({"echo": True}, {"echo": None}),
        ({"tool_choice": "required"}, {"tool_choice": "auto"}),
        ({"response_format": {"type": "json_object"}}, {"response_format": None}),
        ({"bad_words": ["x"]}, {"bad_words": None}),
        ({"watermarking": True}, {"watermarking": None}),
        ({"vllm_xargs": {"a": 1}}, {"vllm_xargs": None}),
        ({"thinking_token_budget": 0}, {"thinking_token_budget": 9}),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, {"messages": [{"content": "hi"}]}),
    ],
)
def test_a_fix_mends_its_reason_and_trust_is_named_only_where_it_does(body, mended):
    reason = sampling.untrainable_within(body, [3], trust=False)
    assert find_reason(reason) is not None
    assert sampling.untrainable_within({**body, **mended}, [3], trust=False) is None
    trusted = sampling.untrainable_within(body, [3], trust=True) is None
    # trust takes greedy calls as well, and they have nothing to compare
    assert (TRUST_ADVICE in fix_untrainable(reason)) == (trusted and reason != "temperature 0")


MESSAGE = {"model": "m", "max_tokens": 9000, "messages": [{"role": "user", "content": "hi"}]}
RESPONSE = {"model": "m", "input": "hi"}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}


@pytest.mark.parametrize(
    ("body", "mended"),
    [
        ({"tools": []}, {"tools": None}),
        ({"tools": [{"type": "web_search_20250305", "name": "s"}]}, {"tools": [TOOL]}),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}}, {"tool_choice": {"type": "auto"}}),
        ({"output_config": {"format": {"type": "json_schema"}}}, {"output_config": None}),
        ({"messages": [{"role": "user", "content": [RESULT]}]}, {"messages": [{"role": "user", "content": [{**RESULT, "content": "x"}]}]}),
        ({"messages": [{"role": "developer", "content": "x"}]}, {"messages": [{"role": "system", "content": "x"}]}),
        ({"thinking": {"type": "new"}}, {"thinking": {"type": "adaptive"}}),
        ({"vllm_xargs": {"a": 1}}, {"vllm_xargs": None}),
    ],
)  # fmt: skip
def test_a_fix_of_messages_mends_its_reason(body, mended):
    with pytest.raises(AsAsked):
        messages.to_chat({**MESSAGE, **body})
    assert messages.to_chat({**MESSAGE, **body, **mended})


@pytest.mark.parametrize(
    ("body", "mended"),
    [
        ({"tools": [{"type": "web_search"}]}, {"tools": [{"type": "web_search"}, FUNCTION]}),
        ({"tools": [FUNCTION, {"type": "mcp"}]}, {"tools": [FUNCTION]}),
        ({"tools": [{"type": "custom", "name": "p", "format": {"type": "grammar"}}]}, {"tools": [{"type": "custom", "name": "p", "format": {"type": "text"}}]}),
        ({"tools": [{**FUNCTION, "x": 1}]}, {"tools": [FUNCTION]}),
        ({"tools": [FUNCTION], "tool_choice": "required"}, {"tool_choice": "auto"}),
        ({"text": {"format": {"type": "json_object"}}}, {"text": None}),
        ({"store": True}, {"store": False}),
        ({"previous_response_id": "r"}, {"previous_response_id": None}),
        ({"include": ["message.output_text.logprobs"]}, {"include": None}),
        ({"truncation": "auto"}, {"truncation": None}),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, {"input": [{"role": "user", "content": "x"}]}),
    ],
)  # fmt: skip
def test_a_fix_of_responses_mends_its_reason(body, mended):
    with pytest.raises(AsAsked):
        responses.to_chat({**RESPONSE, **body})
    assert responses.to_chat({**RESPONSE, **body, **mended})


def test_a_reason_with_a_number_is_known_by_its_beginning():
    assert fix_untrainable("temperature 0.0") == UntrainableReason.TEMPERATURE_0.fix
    assert "docs/capture.md" in fix_untrainable("something new")


@pytest.mark.parametrize("kind", ["title", "subagent", "my-own"])
def test_a_kind_that_is_left_out_names_the_setting(kind):
    assert f'take "{kind}" out of identity.untrained_kinds' in fix_untrainable(left_out_reason(kind))
