"""Groups that a trainer may lease, and the lease."""

from __future__ import annotations

from functools import partial

from tests.support.plane import until

LEASE = {"worker": "w1", "min_groups": 1, "max_groups": 4, "max_wait": 0}


async def group_of(plane, task: str, rewards: list[float | None], adapter: str = "tiny", **head) -> list[str]:
    names = [f"{task}-{i}" for i in range(len(rewards))]
    for name, reward in zip(names, rewards, strict=True):
        await plane.call(name, task=task, adapter=adapter, done=True, **head)
        if reward is not None:
            assert (await plane.ask("POST", f"/episodes/{name}/rewards", {"value": reward}))[0] == 200
    for name in names:
        await until(partial(_state, plane, name, "done"))
    return names


async def _state(plane, name: str, state: str) -> bool:
    return (await plane.seen(name))["state"] == state


async def first_lease(plane):
    """The answer of the first lease that holds a batch."""

    async def get():
        r = await lease(plane)
        return r if r.status == 200 else None

    return await until(get)


async def lease(plane, **more):
    return await plane.client.post("/slipstream/v1/batches/lease", json={**LEASE, **more}, headers=plane.as_())
