"""A reply says whether its call can be trained on."""

from __future__ import annotations

import pytest
from tests.support.dataplane import ASK, parsed, post

from slipstream.engines.engine import NEUTRAL_SAMPLING
from slipstream_proxy.log.records import mark_of

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
FORCED = {"type": "function", "function": {"name": "f"}}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
CASES = [
    ({}, "yes"),
    ({"temperature": 0.7, "max_tokens": 5, "stop": ["x"], "seed": 3}, "yes"),
    ({"stream": True}, "yes"),
    ({"tools": [TOOL], "tool_choice": "auto"}, "yes"),
    ({"temperature": 0}, "no; temperature 0"),
    ({"temperature": 0, "stream": True}, "no; temperature 0"),
    ({"top_p": 0.9}, "yes"),
    ({"tools": [TOOL], "tool_choice": "required"}, "no; forced tool"),
    ({"tools": [TOOL], "tool_choice": FORCED}, "no; forced tool"),
    ({"response_format": {"type": "json_object"}}, "no; structured output"),
    ({"logit_bias": {"1": 5}}, "no; logit_bias"),
    ({"messages": [IMAGE]}, "no; images or other media"),
]


@pytest.mark.parametrize(("more", "said"), CASES)
async def test_the_header_says_what_the_store_will_say(start, fake, more, said):
    proxy = await start()
    status, headers, _ = await post(proxy.url, {**ASK, **more})
    assert status == 200 and headers["x-slipstream-trainable"] == said
    (frame,) = await proxy.record(1)
    _, read = parsed(frame)
    assert read.untrainable == (None if said == "yes" else said.removeprefix("no; "))


async def test_a_forgotten_id_that_is_used_again(start, fake):
    proxy = await start()
    proxy.plane.live.update({"forgotten": [f"-/{mark_of('gone')}"]})
    for name, said in (("gone", "no; forgotten"), ("new", "yes")):
        _, headers, _ = await post(proxy.url, ASK, headers={"x-slipstream-episode": name})
        assert headers["x-slipstream-trainable"] == said


async def test_other_formats(start, fake):
    proxy = await start()
    body = {**ASK, "max_tokens": 5}
    assert (await post(proxy.url, body, path="/v1/messages"))[1]["x-slipstream-trainable"] == "yes"
    forced = {**body, "tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "any"}}
    _, headers, _ = await post(proxy.url, forced, path="/v1/messages")
    assert headers["x-slipstream-trainable"] == "no; forced tool: tool_choice"
    _, headers, _ = await post(proxy.url, {"model": "tiny", "prompt": ["a", "b"]}, path="/v1/completions")
    assert headers["x-slipstream-trainable"] == "no; several prompts in one call"


async def test_only_replies_that_could_be_trained_on_have_it(start, fake):
    fake.models |= {"other"}
    models = {"base": {"base": "tiny"}, "trusted": {"trained": "tiny", "sampling": "trust"}}
    proxy = await start(models=models)
    assert "x-slipstream-trainable" not in (await post(proxy.url, {**ASK, "model": "base"}))[1]
    _, headers, _ = await post(proxy.url, {**ASK, "model": "trusted", "top_p": 0.5})
    assert headers["x-slipstream-trainable"] == "yes"
    for name, value in (("split", "eval"), ("split", "off"), ("capture", "off")):
        _, headers, _ = await post(proxy.url, ASK, headers={f"x-slipstream-{name}": value})
        assert headers["x-slipstream-trainable"] == f"no; {name} {value}"
    fake.fail_with = 400
    assert "x-slipstream-trainable" not in (await post(proxy.url, ASK))[1]


async def test_nothing_is_promised_before_the_engine_has_said_what_it_is(start, fake):
    proxy = await start(engine={"kind": "auto"})
    assert (await post(proxy.url, ASK))[1]["x-slipstream-trainable"] == "no; the engine's own sampling"
    assert (await post(proxy.url, ASK | NEUTRAL_SAMPLING))[1]["x-slipstream-trainable"].startswith("unknown; ")
    assert (await post(proxy.url, {**ASK, "temperature": 0}))[1]["x-slipstream-trainable"] == "no; temperature 0"
