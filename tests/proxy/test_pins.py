"""Which adapter serves an episode."""

from __future__ import annotations

import asyncio
import json

from tests.support import until
from tests.support.dataplane import ASK, post


async def test_an_episode_is_pinned_once_and_keeps_its_adapter(start, fake, control):
    proxy = await start()
    await until(lambda: proxy.plane.live.connected)
    replies = await asyncio.gather(
        *(post(proxy.url, ASK, headers={"x-slipstream-episode": "e", "x-slipstream-task": "t"}) for _ in range(6))
    )
    assert {r[1]["x-slipstream-adapter"] for r in replies} == {"tiny@1"} and all(
        json.loads(r[2])["model"] == "tiny" for r in replies
    )
    assert control.pins == [{"key": "-", "episode": "e", "model": "tiny", "task": "t", "split": "train", "tags": {}}]
    assert {(f.head["pin"], f.head["arm"], f.head["adapter"], f.head["trained"]) for f in await proxy.record(6)} == {
        ("control", "control", "tiny@1", "tiny")
    }
    # the pinned version is unloaded: the episode moves to the live one
    control.state = {**control.state, "engines": [{"url": fake.url, "ok": True, "loaded": ["tiny@2"]}]}
    control.changed.set()
    await until(lambda: proxy.plane.live.servers("tiny@1", "e") == [])
    _, headers, _ = await post(proxy.url, ASK, headers={"x-slipstream-episode": "e"})
    assert headers["x-slipstream-adapter"] == "tiny@2" and (await proxy.record(7))[-1].head["pin"] == "moved"


async def test_while_a_replay_runs_each_call_is_told_of_and_waits_for_nobody(start, fake, control):
    proxy = await start()
    models = {"tiny": {"base": "tiny", "live": "tiny@2", "arms": []}}
    control.state = {**control.state, "models": models, "asks": True}
    control.changed.set()
    await until(lambda: proxy.plane.live.asks)
    for _ in range(2):
        before = control.told
        _, headers, _ = await post(proxy.url, ASK)
        assert headers["x-slipstream-adapter"] == "tiny@2"
        await until(lambda before=before: control.told > before)
    assert not control.pins


async def test_the_id_of_an_episode_is_the_workers(start, fake, control):
    """The answer names an adapter and an arm, and no episode: a client that has seen the id must find it in the store."""
    proxy = await start()
    await until(lambda: proxy.plane.live.connected)
    _, headers, _ = await post(proxy.url, ASK, headers={"x-slipstream-episode": "mine"})
    (frame,) = await proxy.record(1)
    assert headers["x-slipstream-episode"] == frame.head["episode"] == control.pins[0]["episode"] == "mine"


async def test_with_one_adapter_a_worker_decides_alone(start, fake, control):
    proxy = await start()
    await until(lambda: proxy.plane.live.connected)
    control.state = {**control.state, "models": {"tiny": {"base": "tiny", "live": "tiny@2", "arms": []}}}
    control.changed.set()
    await until(lambda: not proxy.plane.live.models["tiny"].arms)
    await post(proxy.url, ASK)
    assert not control.pins
    await post(proxy.url, ASK, headers={"x-slipstream-episode": "e"})  # it may have begun with an earlier adapter
    assert [p["episode"] for p in control.pins] == ["e"]
    heads = [frame.head for frame in await proxy.record(2)]
    assert [(h["adapter"], h["pin"]) for h in heads] == [("tiny@2", "sole"), ("tiny@1", "control")]
    assert proxy.plane.metrics.values["slipstream_pins_total", 'by="rule"'] == 1
