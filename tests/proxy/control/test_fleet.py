"""A proxy that is alone follows nobody (several proxies: tests/proxy/store/test_fleet.py)."""

from __future__ import annotations

import pytest
from tests.support.adapters import write_adapter

from slipstream_proxy.control.adapters.journal import ConcurrentChange
from slipstream_proxy.control.shared.problem import Problem


async def test_alone_everything_is_its_own(plane):
    fleet, adapters = plane.deps.rollout.fleet, plane.deps.rollout.registry
    write_adapter(plane.config.adapters_dir / "tiny@1")
    await plane.ask("POST", "/adapters?wait=60", {"path": "tiny@1"})
    before = dict(adapters.items)
    await fleet.follow()
    await fleet.bring("tiny@1")
    assert adapters.items == before
    one = adapters.items["tiny@1"]
    assert fleet.mine(one) and fleet.may_refuse(one) and fleet.up_to_date(0.0)
    assert fleet.behind is None


async def test_what_is_decided_in_vain_is_decided_again(plane):
    tried = []

    async def decide():
        tried.append(1)
        if len(tried) < 3:
            raise ConcurrentChange
        return "done"

    assert await plane.deps.rollout.fleet.agree(decide) == "done"

    async def never():
        raise ConcurrentChange

    with pytest.raises(Problem) as e:
        await plane.deps.rollout.fleet.agree(never)
    assert e.value.status == 503
