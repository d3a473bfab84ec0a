"""Models of others: reached by the model map with a key of their own, recorded as text."""

from __future__ import annotations

import json

import pytest
from tests.support.dataplane import ASK, parsed, post
from tests.support.fake_engine import FakeEngine


@pytest.fixture
async def other():
    """Another company's server: OpenAI's protocol, behind a key."""
    server = await FakeEngine().start()
    server.models = {"big-1"}
    yield server
    await server.stop()


@pytest.fixture
def models(other, monkeypatch):
    monkeypatch.setenv("OTHER_KEY", "sk-theirs")
    return {
        "gpt-4o*": {"upstream": f"{other.url}/v1", "model": "big-1", "api_key_env": "OTHER_KEY"},
        "big-1": {"upstream": other.url},
    }


ASKED = {**ASK, "model": "gpt-4o-mini"}
OURS = {"authorization": "Bearer sk-ours", "x-slipstream-episode": "e1"}


@pytest.mark.parametrize("stream", [False, True])
async def test_asked_bare_with_its_own_key(start, fake, other, models, stream):
    proxy = await start(models=models)
    status, headers, body = await post(proxy.url, {**ASKED, "stream": stream}, headers=OURS)
    direct = await post(other.url, {**ASK, "model": "big-1", "stream": stream})
    assert status == 200 and body == direct[2].replace(b"big-1", b"gpt-4o-mini")
    assert headers["x-slipstream-episode"] == "e1" and not fake.seen
    sent, fields = other.seen[0]
    assert sent == {**ASK, "model": "big-1", "stream": stream}  # nothing is injected
    assert fields["Authorization"] == "Bearer sk-theirs"
    assert not [name for name in fields if name.lower().startswith("x-slipstream")]
    (frame,) = await proxy.record()
    head, read = parsed(frame)
    assert head.external and head.trained is None and head.model == "gpt-4o-mini"
    assert read.untrainable == "external upstream" and not read.prompt_ids and not read.choices[0].completion_ids
    assert read.messages == ASK["messages"] and read.choices[0].message["content"].startswith("Hello")
    assert b"sk-" not in frame.request + frame.reply + json.dumps(frame.head).encode()


async def test_without_a_key_none_is_sent(start, fake, other, models):
    proxy = await start(models=models)
    assert (await post(proxy.url, {**ASK, "model": "big-1"}, headers=OURS))[0] == 200
    assert "Authorization" not in other.seen[0][1]


async def test_errors_name_the_clients_model(start, fake, other, models):
    proxy = await start(models=models)
    other.models = set()
    status, _, body = await post(proxy.url, ASKED)
    assert status == 404 and b"gpt-4o-mini" in body and b"big-1" not in body
    (frame,) = await proxy.record()
    assert parsed(frame)[1].untrainable == "external upstream" and frame.head["outcome"] == "error"


@pytest.mark.parametrize(("path", "shape"), [("/v1/chat/completions", "error"), ("/v1/messages", "type")])
async def test_one_that_is_away(start, fake, other, models, path, shape):
    proxy = await start(models=models)
    await other.stop()
    status, headers, body = await post(proxy.url, {**ASKED, "max_tokens": 5}, path=path)
    assert status == 503 and headers["retry-after"] == "1" and shape in json.loads(body)
    assert (await post(proxy.url, ASK))[0] == 200  # and our own engine is none the worse for it


async def test_other_formats_go_as_they_are(start, fake, other, models):
    proxy = await start(models=models)
    status, _, body = await post(proxy.url, {**ASKED, "max_tokens": 5}, path="/v1/messages")
    assert status == 200 and json.loads(body)["model"] == "gpt-4o-mini"
    assert other.seen[0][0] == {**ASK, "model": "big-1", "max_tokens": 5}
    (frame,) = await proxy.record()
    assert parsed(frame)[1].untrainable == "external upstream"


async def test_routes_that_are_not_captured(start, fake, other, models):
    proxy = await start(models=models)
    status, _, body = await post(proxy.url, {"model": "gpt-4o-mini", "input": "x"}, path="/v1/embeddings")
    assert status == 404 and "external upstream" in json.loads(body)["error"]["message"]
