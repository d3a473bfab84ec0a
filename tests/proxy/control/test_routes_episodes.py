from __future__ import annotations


async def test_a_call_becomes_an_episode(plane):
    await plane.call("e1")
    body = await plane.seen("e1")
    assert body["task"] == "t1"
    assert body["call_list"][0]["reply"][0]["content"] == "hi"
    assert body["call_list"][0]["prompt_ids"] is None


async def test_tokens_on_demand(plane):
    await plane.call("e1")
    body = await plane.seen("e1", tokens=1)
    call = body["call_list"][0]
    assert (call["prompt_ids"], call["completion_ids"], call["logprobs"]) == ([1, 2, 3], [[4, 5]], [[-0.5, -0.25]])
