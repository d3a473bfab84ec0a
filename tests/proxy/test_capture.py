"""What is asked of the engine beside what the client asked, and hidden again."""

from __future__ import annotations

import json

import pytest
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
