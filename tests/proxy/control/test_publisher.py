from __future__ import annotations

from slipstream.contract import Adapter


async def test_versions_that_serve_no_more_are_told_with_the_time_of_their_end(plane):
    def version(n: int, state: str, decided: float | None, **more) -> Adapter:
        fields = {"name": f"tiny@{n}", "model": "tiny", "version": n, "path": f"tiny@{n}", "created": 10.0 * n}
        return Adapter.model_validate({**fields, "state": state, "decided": decided, **more})

    known = [
        version(1, "retired", 15.0, accepted=True), version(2, "rolled_back", 27.0), version(3, "refused", None),
        version(4, "live", 45.0, accepted=True), version(5, "candidate", None),
    ]  # fmt: skip
    plane.deps.rollout.registry.items.update({a.name: a for a in known})
    plane.deps.rollout.publisher.publish()
    gone = plane.deps.live.value["gone"]
    assert gone == {"tiny@1": ["retired", 45.0], "tiny@2": ["rolled_back", 27.0], "tiny@3": ["refused", 30.0]}


async def test_the_live_state_is_sent_only_when_it_changed(plane):
    live, publisher = plane.deps.live, plane.deps.rollout.publisher
    publisher.publish()
    before = live.version
    publisher.publish()
    assert live.version == before
    assert live.value["models"] == {"tiny": {"base": "tiny", "live": "tiny", "arms": []}}
    plane.deps.engines.engines[0].ok = not plane.deps.engines.engines[0].ok
    publisher.publish()
    assert live.version == before + 1
