"""Header lines that the proxy adds."""

from __future__ import annotations

import json

import aiohttp
import pytest
from tests.support.dataplane import ASK

from slipstream_proxy.data.call.steps.headers import FORM_TYPE, adapter_line, as_json


@pytest.mark.parametrize("name", ["m@1", "ü", "a\r\nset-cookie: b", "a\0b", "a\x1b[2J\x7f", "long" * 20_000])
def test_an_adapters_name_is_one_header_line(name):
    line = adapter_line(name)
    assert (
        line.startswith(b"x-slipstream-adapter: ")
        and line.count(b"\r\n") == 1
        and line.endswith(b"\r\n")
        and line[:-2].decode("ascii").isprintable()
        and len(line) < 300
    )


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        (b"A: b\r\nContent-Type: %b\r\nC: d\r\n" % FORM_TYPE, b"A: b\r\nC: d\r\nContent-Type: application/json\r\n"),
        (b"content-type: text/plain; x=1\r\n", b"content-type: text/plain; x=1\r\n"),
        (b"content-type: %b; charset=utf-8\r\n" % FORM_TYPE, b"Content-Type: application/json\r\n"),
        (b"A: b\r\n", b"A: b\r\nContent-Type: application/json\r\n"),
        (b"Content-Type: Application/JSON; charset=utf-8\r\n", b"Content-Type: Application/JSON; charset=utf-8\r\n"),
    ],
)
def test_the_engine_is_told_that_the_body_is_json(fields, sent):
    assert as_json(fields) == sent


async def ask(proxy, **kw):
    """→ Status and headers of a chat completion."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.url}/v1/chat/completions", **kw) as reply,
    ):
        await reply.read()
        return reply.status, reply.headers


async def test_curls_default_content_type_reaches_the_engine_as_json(start, fake):
    proxy = await start()
    headers = {"content-type": FORM_TYPE.decode()}
    status, _ = await ask(proxy, data=json.dumps(ASK), headers=headers)
    assert status == 200
    kinds = [v for k, v in fake.seen[-1][1].items() if k.lower() == "content-type"]
    assert kinds == ["application/json"]


async def test_what_the_engine_does_not_know_is_no_adapter(start, fake):
    proxy = await start()
    status, headers = await ask(proxy, json={**ASK, "model": "gpt-4o"})
    assert status == 404
    assert "x-slipstream-adapter" not in headers
