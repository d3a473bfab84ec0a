"""The proxy and the trainer are killed with -9 in the middle of their work: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest
from tests.support import MODEL, process, slipstream, until, wait_for
from tests.support.load import Load, streams
from tests.support.running import run_proxy

from slipstream.client import Client
from slipstream.errors import ApiError

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


def kill_all(pid: int) -> None:
    """The proxy's whole process group, at once."""
    os.killpg(pid, signal.SIGKILL)


def stored(url: str) -> list[str]:
    with Client(url) as client:
        return [row[0] for row in client.sql("select id from calls where outcome = 'ok'", 100_000).rows]


@pytest.mark.parametrize("durability", ["power", "process"])
def test_proxy_killed_under_load_loses_no_answered_call(engine, tmp_path: Path, durability: str) -> None:
    load = Load()

    async def under_load(url: str, kill: bool, pid: int) -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(streams(load, url, 16, stop, stream=False))
        before = len(load.answered)
        await until(lambda: len(load.answered) >= before + 60)
        if kill:
            kill_all(pid)
            await asyncio.sleep(0.2)
        stop.set()
        await running

    for last in (False, False, True):
        with run_proxy(tmp_path, engine.url, proxy={"port": 0, "durability": durability}) as proxy:
            asyncio.run(under_load(proxy.url, not last, proxy.process.pid))
            if last:
                wait_for(lambda: set(load.answered) <= set(stored(proxy.url)), 60, 0.5, "every answered call is stored")
                ids = stored(proxy.url)
                assert len(ids) == len(set(ids)), "a call is stored twice"
    assert len(load.answered) >= 150


REWARD_RULE = 0.5


async def episodes(url: str, count: int, start: int) -> None:
    """``count`` groups of 4 rewarded episodes, so that there is something to train on."""
    import httpx

    load = Load()
    async with httpx.AsyncClient(timeout=120, trust_env=False) as client:

        async def one(group: int, member: int) -> None:
            name = f"train-{start + group}-{member}"
            for _ in range(2):
                assert await load.call(client, url, name, f"kill-{start + group}", False), load.errors
            reward = {"name": "reward", "value": float((member + group) % 2), "source": "agent"}
            (await client.post(f"{url}/slipstream/v1/episodes/{name}/rewards", json=reward)).raise_for_status()
            (await client.post(f"{url}/slipstream/v1/episodes/{name}/done", json={})).raise_for_status()

        await asyncio.gather(*(one(g, m) for g in range(count) for m in range(4)))


def steps(client: Client) -> list[dict[str, object]]:
    return [e.data for e in client.events() if e.kind == "step"]  # type: ignore[misc]


@pytest.mark.slow
def test_trainer_killed_in_mid_step_goes_on_and_trains_no_batch_twice(engine, start_proxy, tmp_path: Path) -> None:
    trainer = {
        "model": str(MODEL), "learning_rate": 1e-4, "threads": 1, "min_groups": 2, "max_groups": 2, "max_wait": 3600.0, "max_staleness": 100,
    }  # fmt: skip
    proxy = start_proxy(engine.url, trainer=trainer, groups={"size": 4})
    asyncio.run(episodes(proxy.url, 12, 0))
    log = tmp_path / "trainer.log"
    argv = slipstream("trainer", "--config", str(proxy.config), "--url", proxy.url)
    env = {"OMP_NUM_THREADS": "1"}
    with Client(proxy.url) as client:
        for round_ in range(3):
            before = len(steps(client))
            with process(argv, log, env) as p:
                wait_for(
                    lambda before=before, p=p: len(steps(client)) > before or p.poll() is not None,  # type: ignore[misc]
                    240,
                    0.05,
                    f"a step: {log.read_text()[-2000:]}",
                )
                time.sleep(0.15 * round_)  # somewhere in the next step
                os.killpg(p.pid, signal.SIGKILL)
        with process(argv, log, env):
            wait_for(lambda: batches(client)["trained"] == 6, 240, 0.2, f"all six batches: {log.read_text()[-3000:]}")
            wait_for(lambda: len({s["batch"] for s in steps(client)}) == 6, 60, 0.2, "a step event for each batch")
        told = [s["batch"] for s in steps(client)]
        assert len(told) == len(set(told)) == 6, f"a batch was trained on twice, or not told: {told}"
        assert [s["step"] for s in steps(client)] == sorted(s["step"] for s in steps(client))  # type: ignore[type-var]


def batches(client: Client) -> dict[str, int]:
    with contextlib.suppress(ApiError):
        groups = client.status().groups
        return {"trained": groups.get("trained", 0) // 2}
    return {"trained": 0}


@pytest.mark.slow
def test_the_trainer_that_is_ended_politely_gives_its_lease_back(engine, start_proxy, tmp_path: Path) -> None:
    trainer = {"model": str(MODEL), "threads": 1, "min_groups": 50, "max_groups": 50, "max_wait": 3600.0}
    proxy = start_proxy(engine.url, trainer=trainer, groups={"size": 4})
    log = tmp_path / "trainer.log"
    with process(slipstream("trainer", "--config", str(proxy.config), "--url", proxy.url), log) as p:
        time.sleep(15)
        p.send_signal(signal.SIGTERM)
        assert p.wait(60) == 0, log.read_text()[-2000:]
    assert json.loads(json.dumps(batches(Client(proxy.url)))) == {"trained": 0}
