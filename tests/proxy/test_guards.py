"""Requests that an engine does not survive."""

from __future__ import annotations

import json

import pytest
from tests.support.dataplane import ASK, post


@pytest.mark.parametrize("value", [0, 1, 5])
async def test_a_cpu_engine_gets_no_prompt_logprobs(start, fake, value):
    proxy = await start(engine={"cpu": True})
    status, _, body = await post(proxy.url, {**ASK, "prompt_logprobs": value})
    error = json.loads(body)["error"]
    assert status == 400 and error["param"] == "prompt_logprobs" and "CPU" in error["message"] and not fake.seen
    for harmless in ({}, {"prompt_logprobs": None}):
        assert (await post(proxy.url, {**ASK, **harmless}))[0] == 200


async def test_any_other_engine_gets_them(start, fake):
    proxy = await start()
    assert (await post(proxy.url, {**ASK, "prompt_logprobs": 1}))[0] == 200 and fake.seen[0][0]["prompt_logprobs"] == 1
