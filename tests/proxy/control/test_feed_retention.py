from __future__ import annotations

from tests.support.plane import until

from slipstream_proxy.control.run.retention import FeedWatch


async def groups_told(plane, after: int) -> list[str]:
    feed = plane.deps.feed
    return [e.name for e in feed._ring if e.number > after and e.name == "group"]


async def test_a_group_that_forms_is_told_while_somebody_follows(make_plane):
    plane = await make_plane(groups={"size": 2})
    feed, watch = plane.deps.feed, FeedWatch(plane.deps)
    await watch.look()
    assert watch._states is None, "nobody follows: the store is not asked"
    feed.readers += 1
    await watch.look()
    before = feed.last
    await plane.call("a", task="t", done=True)

    async def formed():
        await watch.look()
        return await groups_told(plane, before)

    assert await until(formed)
    before = feed.last
    await watch.look()
    assert await groups_told(plane, before) == [], "what is as it was is not told again"
    await plane.ask("POST", "/episodes/a/rewards", {"value": 1.0})
    assert await until(formed)
    feed.readers -= 1


async def test_a_store_that_others_use_too_is_told_of_as_a_whole(plane, monkeypatch):
    plane.deps.feed.readers += 1
    watch = FeedWatch(plane.deps)
    monkeypatch.setattr(type(plane.deps.stores), "shared", True)
    before = plane.deps.feed.last
    await watch.look()
    assert [e.name for e in plane.deps.feed._ring if e.number > before] == ["status"]
    plane.deps.feed.readers -= 1


async def test_what_the_gate_has_read_is_told_once(plane):
    plane.deps.feed.readers += 1
    watch, feed = FeedWatch(plane.deps), plane.deps.feed

    async def told() -> list[str]:
        before = feed.last
        await watch.look()
        return [e.name for e in feed._ring if e.number > before]

    await plane.deps.rollout.gatekeeper.decide()
    assert await told() == [], "what stood before anybody looked is not news"
    plane.deps.rollout.trials.cursors["tiny"] += 1
    assert await told() == ["adapter"]
    assert await told() == []
    plane.deps.feed.readers -= 1
    assert await told() == []
    plane.deps.rollout.trials.cursors["tiny"] += 1
    plane.deps.feed.readers += 1
    assert await told() == ["adapter"], "who came before our look has not seen it"
    plane.deps.feed.readers -= 1
