"""How a request has its reply sampled."""

from __future__ import annotations

import json

import pytest
from tests.support.dialects import CHAT, head, whole

from slipstream_proxy.dialects import sampling
from slipstream_proxy.dialects.sampling import forces, sampling_of, untrainable, untrainable_within


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, None),
        ({"temperature": 0.7}, None),
        ({"temperature": 0}, "temperature 0"),
        ({"top_p": 0.9}, None),
        ({"top_k": 5}, None),
        ({"top_k": -1}, None),
        ({"min_p": 0.1}, None),
        ({"presence_penalty": 1}, "penalties"),
        ({"repetition_penalty": 1.1}, "penalties"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"use_beam_search": True}, "beam search"),
        ({"tool_choice": "required"}, "forced tool"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "forced tool"),
        ({"tool_choice": "auto"}, None),
        ({"response_format": {"type": "json_object"}}, "structured output"),
        ({"response_format": {"type": "text"}}, None),
        ({"structured_outputs": {"regex": "a"}}, "structured output"),
        ({"temperature": "x"}, "unreadable sampling parameters"),
        ({"bad_words": ["x"]}, "restricted tokens"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"thinking_token_budget": 2}, "thinking budget"),
        ({"thinking_token_budget": 0}, "thinking budget"),
        ({"watermarking": True}, "watermark"),
        ({"vllm_xargs": {"a": 1}}, "engine options"),
        ({"vllm_xargs": {}}, None),
        ({"prompt_embeds": "AAAA"}, "images or other media"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, None),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "images or other media",
        ),
    ],
)
def test_what_sampling_can_be_learned_from(body, reason):
    assert untrainable(body, trust=False) == reason
    trusted = untrainable(body, trust=True)
    assert trusted == (reason if reason in ("beam search", "images or other media") else None)
    read = CHAT.parse(json.dumps(body).encode(), whole(), head())
    assert read.untrainable == reason


@pytest.mark.parametrize(
    ("asked", "effective"),
    [
        (None, 1.0),
        ("0.5", 0.5),
        (1, 1),
        (0, 0),
        (0.001, 0.01),
        ("0.001", 0.01),
        (0.01, 0.01),
        ("hot", "hot"),
        ([1], [1]),
    ],
)
def test_the_effective_sampling(asked, effective):
    assert sampling_of({"n": 2, "max_tokens": 5, "temperature": asked})["temperature"] == effective


class Watched(dict[str, object]):
    """A body that has every member, and keeps which were read."""

    def __init__(self) -> None:
        super().__init__({name: None for name in sampling._CONSTRAINING})
        self.read: set[str] = set()

    def get(self, name, default=None):
        self.read.add(name)
        return super().get(name, default)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"chat_template_kwargs": {"enable_thinking": False, "budget": 3}}, {"enable_thinking": False, "budget": 3}),
        ({"reasoning_effort": "low"}, {"enable_thinking": True, "reasoning_effort": "low"}),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, {"enable_thinking": True, "reasoning_effort": "none"}),
        ({"chat_template_kwargs": {"documents": [{"text": "of a user"}], "persona": "a text that a user wrote", "a": None}}, None),
        ({"chat_template_kwargs": {"chat_template": "x"}, "reasoning_effort": 3}, None),
        ({"chat_template_kwargs": "x"}, None),
    ],
)  # fmt: skip
def test_what_a_request_sets_in_the_template_is_kept(body, found):
    assert sampling_of(body).get("chat_template_kwargs") == found


def test_the_short_way_looks_at_all_members_that_the_long_way_reads():
    body = Watched()
    assert forces(body) is None
    assert body.read == sampling._FORCING
    assert untrainable(body, trust=False) is None
    # what is kept says nothing, but min_tokens
    kept = {"messages", "temperature", "chat_template_kwargs", "reasoning_effort", *sampling._KEPT}
    assert body.read - kept | {"min_tokens"} == sampling._CONSTRAINING


def test_a_thinking_budget_that_was_not_spent_forced_nothing():
    assert untrainable_within({"thinking_token_budget": 9}, [8, 3], trust=False) is None
    assert untrainable_within({"thinking_token_budget": 9}, [8, 9], trust=False) == "thinking budget"
    assert untrainable_within({"thinking_token_budget": 9, "temperature": 0}, [3], trust=False) == "temperature 0"
    assert untrainable_within({"thinking_token_budget": 9, "top_p": 0.5}, [9], trust=True) is None
