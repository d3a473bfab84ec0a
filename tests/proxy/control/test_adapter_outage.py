"""An engine that takes no adapters: the proxy waits, says so, and goes on by itself. No adapter is refused for it."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.support.fake_engine import LoraEngine
from tests.support.plane import register, state, until

from slipstream.contract import Funnel, FunnelLine
from slipstream.engines.engine import NoAdapters

WAYS = {"no routes": "no_adapter_routes", "no LoRA": "lora_off"}
EACH = pytest.mark.parametrize("way", WAYS)


async def line(plane, cause: str) -> FunnelLine | None:
    _, body = await plane.ask("GET", "/status")
    return next((x for x in Funnel.model_validate(body["funnel"]).lines if x.cause == cause), None)


async def metric(plane) -> str:
    text = await (await plane.client.get("/internal/metrics")).text()
    return next(x.split()[-1] for x in text.splitlines() if x.startswith("slipstream_engine_takes_adapters{"))


async def outage(plane) -> dict | None:
    return (await plane.ask("GET", "/status"))[1]["engines"][0]["outage"]


def published(plane) -> dict:
    return plane.deps.live.value["engines"][0]


@EACH
async def test_the_live_adapter_waits_and_comes_back_by_itself(plane, way):
    await register(plane, 1)
    plane.engine.restart(takes_none=way)
    said = await until(lambda: line(plane, WAYS[way]))
    assert said.blocks and plane.engine.url in said.text and "--enable-lora" in said.fix
    assert ("VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in said.fix) == (way == "no routes")
    told = await outage(plane)
    assert told["cause"] == WAYS[way] and 0 <= plane.deps.now() - told["since"] < 60
    assert (await metric(plane)) == "0.0"
    for _ in range(3):  # also after further checks
        await plane.deps.engines.check_all()
        await plane.deps.rollout.swapper.tick()
    assert (await state(plane, 1))["state"] == "live"
    assert (published(plane)["ok"], published(plane)["loaded"]) == (True, [])
    assert plane.deps.engines.refused == {}
    assert (await outage(plane))["since"] == told["since"]

    plane.engine.restart()
    await until(lambda: published(plane)["loaded"] == ["tiny@1"])
    assert (await state(plane, 1))["state"] == "live"
    assert await line(plane, WAYS[way]) is None
    assert (await metric(plane), await outage(plane)) == ("1.0", None)


@EACH
async def test_a_new_adapter_waits(plane, way):
    plane.engine.restart(takes_none=way)
    await register(plane, 1, wait=0)
    await until(lambda: line(plane, WAYS[way]))
    for _ in range(3):
        await plane.deps.rollout.swapper.tick()
    shown = await state(plane, 1)
    assert shown["state"] == "loading" and shown["reason"].startswith("it waits until an engine takes adapters: ")
    assert plane.deps.live.value["models"]["tiny"]["live"] == "tiny"
    plane.engine.restart()
    await until(lambda: plane.deps.live.value["models"]["tiny"]["live"] == "tiny@1")


async def test_it_is_said_before_there_is_an_adapter(make_plane, engine):
    engine.takes_none = "no routes"
    plane = await make_plane()
    assert await line(plane, "no_adapter_routes") and published(plane)["ok"]
    engine.takes_none = None
    await until(plane.deps.engines.takers)
    assert await line(plane, "no_adapter_routes") is None


@EACH
async def test_a_candidate_waits_and_nobody_is_assigned_to_an_arm(make_plane, way):
    plane = await make_plane(gate={"holdout": 0.1})
    _, body = await register(plane, 1)
    assert body["state"] == "candidate"
    await until(lambda: [a[:2] for a in plane.deps.live.value["models"]["tiny"]["arms"]] == [["tiny", "control"]])
    plane.engine.restart(takes_none=way)
    await until(plane.deps.engines.none_takes)
    await until(lambda: plane.deps.live.value["models"]["tiny"]["arms"] == [])
    asked = [{"key": "-", "episode": f"e{n}", "model": "tiny", "task": "t"} for n in range(30)]
    pins = await (await plane.client.post("/internal/pins", json=asked)).json()
    assert {(p["adapter"], p["chances"]) for p in pins} == {("tiny@1", "")}  # no evidence for the gate
    assert (await state(plane, 1))["state"] == "candidate"
    plane.engine.restart()
    await until(lambda: plane.deps.live.value["models"]["tiny"]["arms"])
    await until(lambda: published(plane)["loaded"] == ["tiny@1"])


@pytest.mark.parametrize("status", [503, 0])
async def test_an_engine_that_cannot_load_its_adapter_again_gives_the_gate_no_evidence(make_plane, status):
    """Whatever the reason: the episodes of the base model's arm alone would take the adapter back."""
    plane = await make_plane(gate={"holdout": 0.1})
    await register(plane, 1)
    await until(lambda: plane.deps.live.value["models"]["tiny"]["arms"])
    plane.engine.refuse["tiny@1"] = status
    plane.engine.restart()
    looking = asyncio.create_task(plane.deps.engines.check_all())
    await until(lambda: plane.deps.live.value["models"]["tiny"]["arms"] == [], 20.0)  # also while the load hangs
    assert published(plane)["loaded"] == []
    await looking
    assert (await state(plane, 1))["state"] == "candidate"
    del plane.engine.refuse["tiny@1"]
    await until(lambda: plane.deps.live.value["models"]["tiny"]["arms"])
    assert published(plane)["loaded"] == ["tiny@1"]


@EACH
async def test_an_engine_that_is_ill_is_still_one_without_adapters(plane, way):
    await register(plane, 1)
    plane.engine.restart(takes_none=way)
    told = await until(lambda: outage(plane))
    plane.engine.takes_none = None
    plane.engine.refuse |= {"slipstream-probe": 503, "tiny@1": 503}
    if way == "no LoRA":  # its probe names an adapter
        for _ in range(2):
            await plane.deps.engines.check_all()
        assert (await outage(plane)) == told
    plane.engine.refuse.clear()
    await until(lambda: published(plane)["loaded"] == ["tiny@1"])


async def test_the_engine_is_never_called_down_for_it(plane):
    """From the first look on: else calls would fail until the next one."""
    await register(plane, 1)
    told = []

    async def follow():
        async for text in (await plane.client.get("/internal/live")).content:
            told.extend(json.loads(text).get("engines", ()))

    following = asyncio.create_task(follow())
    await until(lambda: told)
    plane.engine.restart(takes_none="no routes")
    await until(lambda: told[-1]["loaded"] == [])
    plane.engine.restart()
    await until(lambda: told[-1]["loaded"] == ["tiny@1"])
    following.cancel()
    assert [e["ok"] for e in told] == [True] * len(told)


async def test_a_bad_adapter_is_refused_still(plane):
    """vLLM has the route, and says no to this adapter."""
    plane.engine.refuse["tiny@1"] = 400
    assert (await register(plane, 1))[1]["state"] == "refused"
    assert await outage(plane) is None


@pytest.mark.parametrize(
    ("plugin", "version", "said"),
    [
        (True, "0.32.0", "SLIPSTREAM_ENGINE_ADAPTERS=1 in place"),
        (False, "0.33.0", "knows vLLM 0.25 to 0.32 and is off with 0.33.0"),
        (False, "0.32.0", "or with the engine plugin"),
    ],
)
async def test_the_fix_is_for_this_engine(make_plane, engine, plugin, version, said):
    engine.takes_none, engine.plugin, engine.version = "no routes", plugin, version
    plane = await make_plane()
    assert said in (await line(plane, "no_adapter_routes")).fix


async def test_another_vllm_has_another_fix_and_the_outage_goes_on(make_plane, engine):
    engine.takes_none = "no routes"
    plane = await make_plane()
    before = await outage(plane)
    engine.up = False
    await until(lambda: not plane.deps.engines.healthy())
    assert await line(plane, "no_adapter_routes") is None  # it is down, and that is said
    engine.up, engine.version = True, "0.40.0"
    await until(plane.deps.engines.healthy)
    after = await outage(plane)
    assert (after["since"], "0.40.0" in after["fix"], "0.40.0" in before["fix"]) == (before["since"], True, False)


@pytest.fixture
async def second():
    engine = await LoraEngine().start()
    yield engine
    await engine.stop()


async def test_of_two_engines_the_other_goes_on(make_plane, engine, second):
    plane = await make_plane(engine={"urls": [engine.url, second.url]})
    await until(lambda: len(plane.deps.engines.healthy()) == 2)
    await register(plane, 1)
    engine.restart(takes_none="no routes")
    said = await until(lambda: line(plane, "no_adapter_routes"))
    assert not said.blocks and engine.url in said.text and second.url not in said.text
    assert (await register(plane, 2))[1]["state"] == "live"
    told = [(True, False), (True, True)]
    await until(lambda: [(e["ok"], "tiny@2" in e["loaded"]) for e in plane.deps.live.value["engines"]] == told)
    assert "tiny@2" in plane.deps.engines.loaded() and not plane.deps.engines.none_takes()
    engine.restart()
    await until(lambda: "tiny@2" in engine.adapters)


async def test_what_an_engine_had_that_is_down_keeps_no_call_waiting(make_plane, engine, second):
    plane = await make_plane(engine={"urls": [engine.url, second.url]})
    await until(lambda: len(plane.deps.engines.healthy()) == 2)
    await register(plane, 1)
    engine.restart(takes_none="no routes")
    second.up = False
    await until(plane.deps.engines.none_takes)
    await until(lambda: [(e["ok"], e["loaded"]) for e in plane.deps.live.value["engines"]] == [(True, []), (False, [])])
    second.up = True
    await until(lambda: plane.deps.live.value["engines"][1]["loaded"] == ["tiny@1"])


def test_causes_are_labels():
    assert {c.value for c in NoAdapters} == {*WAYS.values(), "adapters_forbidden", "no_token_ids"}
