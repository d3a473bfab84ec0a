"""What is asked of the engine beside what the client asked, and hidden again."""

from __future__ import annotations

import json

import pytest
from tests.support import until
from tests.support.dataplane import ASK, parsed, post


@pytest.mark.parametrize("stream", [False, True])
async def test_ids_are_asked_for_recorded_and_hidden(start, fake, stream):
    proxy = await start()
    _, _, body = await post(proxy.url, {**ASK, "stream": stream})
    assert fake.seen[0][0]["return_token_ids"] is True and fake.seen[0][0]["logprobs"] is True
    assert b'"token_ids":[' not in body and b'"logprobs":{' not in body
    (frame,) = await proxy.record(1)
    _, read = parsed(frame)
    assert read.prompt_ids and read.choices[0].completion_ids and read.untrainable is None


async def test_an_external_upstream_is_asked_what_the_client_asked(start, fake):
    fake.models = {"big"}
    proxy = await start(models={"ext": {"upstream": fake.url + "/v1", "model": "big"}})
    await post(proxy.url, {**ASK, "model": "ext"})
    assert fake.seen[0][0] == {**ASK, "model": "big"}


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"model": 5, "messages": []}'])
async def test_what_cannot_be_read_goes_as_it_came(start, fake, body):
    proxy = await start()
    await post(proxy.url, body)
    (frame,) = await proxy.record(1)
    assert fake.raw == [body] and frame.head["note"] == "unreadable request"


async def test_the_models_name_is_the_clients(start, fake):
    proxy = await start(models={"gpt-*": {"trained": "tiny"}})
    _, _, body = await post(proxy.url, {**ASK, "model": "gpt-5"})
    assert json.loads(body)["model"] == "gpt-5" and fake.seen[0][0]["model"] == "tiny"


HIDING = {**ASK, "include_reasoning": False}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("parser", [False, True])
async def test_reasoning_that_the_client_hides(start, fake, control, stream, parser):
    """Exactly what the engine itself would answer, where it has no parser; and token ids in either case."""
    fake.parser = parser
    control.state["engines"][0]["parses"] = parser
    proxy = await start()
    await until(lambda: proxy.plane.live.connected)
    _, _, body = await post(proxy.url, {**HIDING, "stream": stream})
    assert fake.seen[-1][0]["include_reasoning"] is parser
    assert (b'"reasoning":null' in body) is (parser or not stream)
    (frame,) = await proxy.record(1)
    _, read = parsed(frame)
    assert read.prompt_ids and read.choices[0].completion_ids and read.untrainable is None
    if not parser:
        _, _, bare = await post(fake.url, {**HIDING, "stream": stream})
        assert events(body) == events(bare)


async def test_without_a_parser_a_client_may_hide_reasoning_and_ask_for_its_tokens(start, fake, control):
    control.state["engines"][0]["parses"] = False
    proxy = await start()
    await until(lambda: proxy.plane.live.connected)
    _, _, body = await post(proxy.url, {**HIDING, "logprobs": True, "return_token_ids": True})
    assert json.loads(body)["choices"][0]["token_ids"]
    (frame,) = await proxy.record(1)
    assert parsed(frame)[1].untrainable is None


QWEN = {"temperature": 0.7, "top_k": 20}


async def recorded(proxy, body, count=1, **kw):
    await post(proxy.url, body, **kw)
    return parsed((await proxy.record(count))[count - 1])[1]


async def test_what_the_engine_samples_with_by_itself_is_recorded(start, fake, control):
    """The engine is told its own values, so that the reply is the same; the caller's own come first."""
    control.state["engines"][0]["sampling"] = QWEN
    proxy = await start()
    await until(lambda: proxy.plane.live.connected)
    silent = await recorded(proxy, ASK)
    assert (silent.sampling["temperature"], silent.sampling["top_k"]) == (0.7, 20) and silent.untrainable is None
    assert {n: fake.seen[0][0][n] for n in QWEN} == QWEN
    own = await recorded(proxy, {**ASK, "top_k": 0, "temperature": None}, 2)
    assert (own.sampling["temperature"], own.sampling["top_k"]) == (0.7, 0) and own.untrainable is None
    message = {"model": "tiny", "max_tokens": 9, "messages": ASK["messages"]}
    assert (await recorded(proxy, message, 3, path="/v1/messages")).sampling["top_k"] == 20
    _, _, reply = await post(proxy.url, {"model": "tiny", "input": "hi", "store": False}, "/v1/responses")
    assert json.loads(reply)["temperature"] == 0.7
    assert parsed((await proxy.record(4))[3])[1].sampling["top_k"] == 20
    forced = {**message, "tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "any"}}
    found = await recorded(proxy, forced, 5, path="/v1/messages")  # it goes to the engine's own route
    assert (found.untrainable, found.sampling["temperature"]) == ("forced tool: tool_choice", 0.7)


async def test_what_the_engine_does_not_tell_trains_nothing(start, control):
    control.state["engines"][0]["sampling_known"] = False
    names = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
    said = {**dict.fromkeys(names, 1.0), "min_p": 0, "presence_penalty": 0, "frequency_penalty": 0}
    proxy = await start(models={"trusted": {"sampling": "trust"}, "said": {"top_k": 0}})
    await until(lambda: proxy.plane.live.connected)
    assert (await recorded(proxy, ASK)).untrainable == "the engine's own sampling"
    assert (await recorded(proxy, {**ASK, **said}, 2)).untrainable == "the engine's own sampling"
    assert (await recorded(proxy, {**ASK, **said, "model": "said"}, 3)).untrainable is None
    assert (await recorded(proxy, {**ASK, "model": "trusted"}, 4)).untrainable is None
    assert (await recorded(proxy, {**ASK, "temperature": 0}, 5)).untrainable == "temperature 0"


@pytest.mark.parametrize(("temperature", "trains"), [(None, True), (1.0, True), (1, True), (0.7, False)])
async def test_log_probabilities_before_temperature_are_of_temperature_1_only(start, control, temperature, trains):
    control.state["engines"][0]["raw_logprobs"] = True
    proxy = await start()
    await until(lambda: proxy.plane.live.connected)
    found = await recorded(proxy, {**ASK, "temperature": temperature})
    assert found.untrainable == (None if trains else "log-probabilities before temperature")


def events(reply: bytes) -> list[bytes]:
    return [line for line in reply.splitlines() if line]
