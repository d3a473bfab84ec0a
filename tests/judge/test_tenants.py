"""Tenants at one judge: each has its own, and none waits for the other's flood."""

from __future__ import annotations

import asyncio
import json

from tests.support import until
from tests.support.control import FakeControl, serve
from tests.support.groups import quality_group

from slipstream.client import AsyncClient
from slipstream.config import Config
from slipstream.tenants import TENANT_STATES_FILE_NAME
from slipstream_judge.compare.slots import JudgeSlots, TenantSlots
from slipstream_judge.run import worker


async def test_a_small_tenant_s_group_is_next_beside_a_flood_and_a_place_is_never_lost() -> None:
    now, order = [0.0], []
    slots = JudgeSlots(2, lambda: now[0])
    flood, small = slots.tenant(), slots.tenant()

    async def judge(tenant: TenantSlots, name: str, seconds: float = 1.0) -> None:
        async with tenant:
            order.append(name)
            await asyncio.sleep(0.01)
            now[0] += seconds

    floods = [asyncio.create_task(judge(flood, "flood")) for _ in range(20)]
    await asyncio.sleep(0.035)
    began = len(order)
    await asyncio.create_task(judge(small, "small"))
    assert order[began:].index("small") <= 2
    late = asyncio.create_task(judge(small, "late"))
    await asyncio.sleep(0)
    for task in [*floods[-5:], late]:
        task.cancel()
    await asyncio.gather(*floods, late, return_exceptions=True)
    assert (slots.used, flood.busy, small.busy) == (0, 0, 0)
    await asyncio.wait_for(judge(small, "again"), 1.0)


async def test_each_tenant_has_a_judge_budget_and_cache_of_its_own(ruled, tmp_path, monkeypatch) -> None:
    judge = {"model": "openai/gpt-4o-mini", "api_base": ruled.url}
    tenants = {"acme": {"quota": {"judge_dollars_per_day": 1e-9}}, "other": {"judge": {"rubric": "say it in verse"}}}
    config = Config.model_validate({"data_dir": str(tmp_path), "judge": judge, "tenants": tenants})
    with serve(FakeControl()) as own, serve(FakeControl()) as acme, serve(FakeControl()) as other:
        controls = {None: own, "acme": acme, "other": other, "late": own}
        monkeypatch.setattr(worker, "AsyncClient", lambda _u, _k, tenant=None: AsyncClient(controls[tenant].url))
        monkeypatch.setattr(worker, "TENANTS_LOOK_S", 0.1)
        for control in (acme, other):
            control.add_groups(quality_group("g", [0.1, 0.9]))
        stop, slots = asyncio.Event(), JudgeSlots(4)
        running = asyncio.create_task(worker.run_tenants(config, None, None, stop, slots))
        await until(lambda: "g" in other.scored and "g" in acme.scored)
        acme.add_groups(quality_group("h", [0.1, 0.9]))
        other.add_groups(quality_group("h", [0.1, 0.9]))
        await until(lambda: "h" in other.scored)
        assert "h" not in acme.scored, "the first group has spent what a day may cost"
        assert acme.cache.keys() != other.cache.keys(), "another rubric, and another store"
        await until(lambda: any(r["waits_for"] for r in acme.reports), 20)
        assert not any(r["waits_for"] for r in other.reports)
        (tmp_path / TENANT_STATES_FILE_NAME).write_text(json.dumps({"late": ""}))
        await until(lambda: len(slots.tenants) == 3)
        stop.set()
        await running
    assert slots.used == 0 and not slots.tenants
