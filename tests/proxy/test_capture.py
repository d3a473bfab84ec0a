"""What is asked of the engine beside what the client asked, and hidden again."""

from __future__ import annotations

import json

import pytest
from tests.support.dataplane import ASK, eventually, parsed, post


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
    await eventually(lambda: proxy.plane.live.connected)
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
    await eventually(lambda: proxy.plane.live.connected)
    _, _, body = await post(proxy.url, {**HIDING, "logprobs": True, "return_token_ids": True})
    assert json.loads(body)["choices"][0]["token_ids"]
    (frame,) = await proxy.record(1)
    assert parsed(frame)[1].untrainable is None


def events(reply: bytes) -> list[bytes]:
    return [line for line in reply.splitlines() if line]
