"""A proxy that is alone follows nobody (several proxies: tests/proxy/store/test_fleet.py)."""

from __future__ import annotations

from tests.proxy.control.fake_engine import write_adapter


async def test_alone_everything_is_its_own(plane):
    fleet, adapters = plane.deps.swapper.fleet, plane.deps.adapters
    write_adapter(plane.config.adapters_dir / "tiny@1")
    await plane.ask("POST", "/adapters?wait=60", {"path": "tiny@1"})
    before = dict(adapters.items)
    await fleet.follow()
    await fleet.bring("tiny@1")
    assert adapters.items == before
    one = adapters.items["tiny@1"]
    assert fleet.mine(one) and fleet.may_refuse(one) and fleet.up_to_date(0.0)
    assert fleet.behind is None
