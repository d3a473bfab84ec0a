"""One word on adapters' states (several proxies: tests/proxy/store/test_fleet.py)."""

from __future__ import annotations

import pytest
from tests.proxy.control.fake_engine import write_adapter

from slipstream.contract import Adapter
from slipstream_proxy.control.agreeing import Agreeing, Meanwhile, event
from slipstream_proxy.control.problem import Problem


def adapter(n: int, state: str = "live", **more) -> Adapter:
    return Adapter(name=f"tiny@{n}", model="tiny", version=n, state=state, created=1.0, path=f"tiny@{n}", **more)


async def test_a_change_is_a_mutation_and_its_event(plane):
    told = []

    async def mutate(op, data):
        told.append((op, data.get("name") or data.get("kind")))

    states = Agreeing(plane.config, mutate)
    states.restore(plane.deps.store)
    await states.change([adapter(1, "retired"), adapter(2)], event("promote", adapter="tiny@2"))
    assert told == [("adapter", "tiny@1"), ("adapter", "tiny@2"), ("event", "promote")]
    assert {a.name: a.state.value for a in states.items.values()} == {"tiny@1": "retired", "tiny@2": "live"}
    assert states.wake.is_set()


async def test_what_is_decided_in_vain_is_decided_again(plane):
    tried = []

    async def decide():
        tried.append(1)
        if len(tried) < 3:
            raise Meanwhile
        return "done"

    assert await plane.deps.adapters.agree(decide) == "done"

    async def never():
        raise Meanwhile

    with pytest.raises(Problem) as e:
        await plane.deps.adapters.agree(never)
    assert e.value.status == 503


async def test_a_shared_store_that_cannot_be_opened_decides_nothing(plane):
    config = plane.config.model_copy(deep=True)
    config.store.url = "postgresql:///nowhere"

    async def mutate(op, data):
        raise AssertionError("nothing is kept that others do not know of")

    states = Agreeing(config, mutate)
    states.restore(None)
    with pytest.raises(Problem) as e:
        await states.change([adapter(1)])
    assert (e.value.status, states.items) == (503, {})


async def test_what_the_store_says_is_taken_over(plane):
    states = Agreeing(plane.config, plane.control._mutate)
    states.adopt(3, [adapter(1, "loading"), adapter(2)])
    assert (states.revision, set(states.arrived)) == (3, {"tiny@1"})
    states.mine.add("tiny@1")
    states.given_up.add("tiny@2")
    states.adopt(4, [adapter(1), adapter(2)])
    assert (states.arrived, states.mine, states.given_up) == ({}, set(), set())


async def test_adapters_of_elsewhere_do_not_take_the_live_ones_place(plane):
    write_adapter(plane.config.adapters_dir / "tiny@1")
    assert (await plane.ask("POST", "/adapters?wait=60", {"path": "tiny@1"}))[1]["state"] == "live"
    brought = {"adapters": [adapter(7).model_dump(mode="json")], "live": {}}
    assert (await plane.ask("POST", "/import/adapters", brought))[0] == 409
    brought["adapters"][0]["state"] = "retired"
    assert await plane.ask("POST", "/import/adapters", brought) == (200, {"adapters": 1})
