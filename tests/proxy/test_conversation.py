"""Which episode a call belongs to."""

from __future__ import annotations

import json

from tests.support.dataplane import ASK, post


async def test_an_untagged_call_continues_what_was_said(start, fake):
    proxy = await start()
    _, headers, body = await post(proxy.url, ASK)
    said = json.loads(body)["choices"][0]["message"]
    more = [*ASK["messages"], said, {"role": "user", "content": "and then?"}]
    _, again, _ = await post(proxy.url, {**ASK, "messages": more})
    assert again["x-slipstream-episode"] == headers["x-slipstream-episode"]
    _, other, _ = await post(proxy.url, ASK)
    assert other["x-slipstream-episode"] != headers["x-slipstream-episode"]


async def test_done_ends_the_name(start, fake):
    proxy = await start()
    named = {"x-slipstream-episode": "e"}
    _, first, _ = await post(proxy.url, ASK, headers={**named, "x-slipstream-done": "true"})
    _, second, _ = await post(proxy.url, ASK, headers=named)
    assert (first["x-slipstream-episode"], second["x-slipstream-episode"]) == ("e", "e~2")


async def test_a_call_that_failed_and_is_sent_again_is_no_new_run(start, fake):
    proxy = await start()
    fake.fail_with = 500
    status, first, _ = await post(proxy.url, ASK)
    assert status == 500
    fake.fail_with = None
    _, again, _ = await post(proxy.url, ASK, headers={"x-stainless-retry-count": "1"})
    assert again["x-slipstream-episode"] == first["x-slipstream-episode"]
