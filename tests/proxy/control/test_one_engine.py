"""What one engine cannot do is its own outage: the others serve, it is named, and it comes back by itself."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest
from tests.support.fake_engine import LoraEngine
from tests.support.plane import register, state, until

from slipstream.config import Config
from slipstream.contract import Funnel, FunnelLine
from slipstream.contract.funnel import Severity
from slipstream.engines.vllm.adapter_routes import lacks_files
from slipstream_proxy.control.engines.pool import EnginePool
from slipstream_proxy.control.engines.replica import EngineFailed, EngineLacks, EngineRefused, FailedLoad


@pytest.fixture
async def others():
    engines = [await LoraEngine().start() for _ in range(2)]
    yield engines
    for one in engines:
        await one.stop()


@pytest.fixture
async def fleet(make_plane, engine, others):
    """Three engines, of which ``plane.engine`` is the first."""
    plane = await make_plane(engine={"urls": [engine.url, *(e.url for e in others)]}, adapters={"patience": 0.5})
    await until(lambda: len(plane.deps.engines.healthy()) == 3)
    return plane


def live(plane) -> str:
    return plane.deps.live.value["models"]["tiny"]["live"]


def loaded(plane, name: str) -> list[bool]:
    return [e["ok"] and name in e["loaded"] for e in plane.deps.live.value["engines"]]


async def line(plane, cause: str) -> FunnelLine | None:
    _, body = await plane.ask("GET", "/status")
    return next((x for x in Funnel.model_validate(body["funnel"]).lines if x.cause == cause), None)


async def metric(plane) -> list[str]:
    text = await (await plane.client.get("/internal/metrics")).text()
    return [x.split()[-1] for x in text.splitlines() if x.startswith("slipstream_engine_lacks_adapters{")]


async def test_an_engine_without_the_mount_holds_up_nobody(fleet):
    await register(fleet, 1)
    fleet.engine.unmounted = True
    began = time.monotonic()
    assert (await register(fleet, 2))[1]["state"] == "live"
    assert time.monotonic() - began < 5  # about 0.2 s on a machine with nothing else to do
    await until(lambda: loaded(fleet, "tiny@2") == [False, True, True])
    assert loaded(fleet, "tiny@1") == [True, True, True], "it serves on with what it has"
    said = await until(lambda: line(fleet, "adapter_lacking"))
    assert said.severity is Severity.SLOWS and fleet.engine.url in said.text and "tiny@2" in said.text
    assert "engine.adapters_dir" in said.fix
    assert sorted(await metric(fleet)) == ["0.0", "0.0", "1.0"]
    for _ in range(3):
        await fleet.deps.engines.check_all()
    assert live(fleet) == "tiny@2" and (await state(fleet, 2))["loaded"]
    fleet.engine.unmounted = False
    await until(lambda: loaded(fleet, "tiny@2") == [True, True, True], 15)
    assert await line(fleet, "adapter_lacking") is None and await metric(fleet) == ["0.0"] * 3


async def test_a_restarted_engine_without_the_mount_takes_nothing_from_the_others(fleet):
    await register(fleet, 1)
    fleet.engine.unmounted = True
    fleet.engine.restart()
    await until(lambda: line(fleet, "adapter_lacking"))
    for _ in range(3):
        await fleet.deps.engines.check_all()
        await fleet.deps.rollout.swapper.tick()
    assert (live(fleet), (await state(fleet, 1))["state"]) == ("tiny@1", "live")
    assert [e["ok"] for e in fleet.deps.live.value["engines"]] == [True] * 3
    fleet.engine.unmounted = False
    await until(lambda: loaded(fleet, "tiny@1") == [True] * 3, 15)


async def test_a_fleet_without_the_mount_waits_and_loses_no_version(fleet, others):
    for one in (fleet.engine, *others):
        one.unmounted = True
    await register(fleet, 1, wait=0)
    said = await until(lambda: line(fleet, "adapter_lacking"))
    assert said.blocks and "no engine has it" in said.text
    await asyncio.sleep(0.7)  # longer than adapters.patience
    shown = await state(fleet, 1)
    assert shown["state"] == "loading" and "No adapter found" in shown["reason"]
    for one in (fleet.engine, *others):
        one.unmounted = False
    await until(lambda: live(fleet) == "tiny@1", 15)


async def test_a_version_whose_files_nobody_has_any_more_is_refused(fleet, others):
    import shutil

    for one in (fleet.engine, *others):
        one.unmounted = True
    await register(fleet, 1, wait=0)
    shutil.rmtree(fleet.config.adapters_dir / "tiny@1")
    await until(lambda: fleet.deps.rollout.registry.items["tiny@1"].state == "refused", 15)


@pytest.mark.parametrize("status", [400, 503])
async def test_one_engine_that_says_no_or_fails_is_outvoted(fleet, status):
    fleet.engine.refuse["tiny@1"] = status
    assert (await register(fleet, 1))[1]["state"] == "live"
    await asyncio.sleep(0.7)
    await until(lambda: loaded(fleet, "tiny@1") == [False, True, True])
    assert (await state(fleet, 1))["state"] == "live"


async def test_an_engine_that_hangs_in_a_load_holds_up_nobody(fleet):
    fleet.engine.refuse["tiny@1"] = 0  # three seconds
    began = time.monotonic()
    assert (await register(fleet, 1))[1]["state"] == "live"
    assert time.monotonic() - began < 2.5
    assert loaded(fleet, "tiny@1") == [False, True, True]


async def test_two_of_three_refuse_it_for_all(fleet, others):
    for one in (fleet.engine, others[0]):
        one.refuse["tiny@1"] = 400
    assert (await register(fleet, 1))[1]["state"] == "refused"
    await until(lambda: "tiny@1" not in others[1].adapters, 15)


def test_the_vote():
    """Every outcome of five engines of two versions, against the sentence that the docs say."""

    async def check() -> None:
        pool = EnginePool(Config(engine={"urls": [f"http://e{n}" for n in range(5)]}))
        for n, engine in enumerate(pool.engines):
            engine.healthy, engine.title = True, "vLLM 0.32" if n < 3 else "vLLM 0.30"
        outcomes = {
            "has": None,
            "no": EngineRefused("no"),
            "lacks": EngineLacks("gone", "mount"),
            "fails": EngineFailed("5"),
        }
        for found in itertools.product(outcomes, repeat=5):
            for engine, outcome in zip(pool.engines, found, strict=True):
                error = outcomes[outcome]
                engine.loaded = {"a@1"} if error is None else set()
                engine.failed = {} if error is None else {"a@1": FailedLoad(error)}
            new, old = found[:3], found[3:]
            taken = new.count("has") >= 2 or old.count("has") >= 1
            refused = new.count("no") >= 2 or old.count("no") == 2
            assert (pool.refusal("a@1") is not None) == (refused and not taken), found

    asyncio.run(check())


@pytest.mark.parametrize(
    ("status", "text", "lacks"),
    [
        (404, "Loading lora a@1 failed: No adapter found for /x/a@1", True),
        (500, "Call to add_lora method failed: [Errno 116] Stale file handle: '/x/a@1/adapter_config.json'", True),
        (500, "[Errno 13] Permission denied: '/x/a@1'", True),
        (500, "Error while deserializing header: incomplete metadata, file not fully covered", True),
        (500, "LoRA rank 64 is greater than max_lora_rank 16.", False),
        (400, "the model has no layer for 3 of the adapter's 9", False),
        (400, "/permission denied/a@1 has another rank", False),
    ],
)
def test_errors_of_files_are_the_engines(status, text, lacks):
    assert lacks_files(status, text, ("a@1", "/x/a@1", "/permission denied/a@1")) is lacks
