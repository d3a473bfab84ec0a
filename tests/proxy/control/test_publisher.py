from __future__ import annotations


async def test_the_live_state_is_sent_only_when_it_changed(plane):
    live, publisher = plane.deps.live, plane.deps.publisher
    publisher.publish()
    before = live.version
    publisher.publish()
    assert live.version == before
    assert live.value["models"] == {"tiny": {"base": "tiny", "live": "tiny", "arms": []}}
    plane.deps.engines.engines[0].ok = not plane.deps.engines.engines[0].ok
    publisher.publish()
    assert live.version == before + 1
