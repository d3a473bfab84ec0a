"""Engines behind a router, and engines that come and go."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from tests.support.fake_engine import LoraEngine
from tests.support.fake_router import FakeRouter
from tests.support.plane import register, state, until

from slipstream.config import Config
from slipstream.contract import Funnel, FunnelLine
from slipstream.operate.doctor.engine import check_engine, check_router
from slipstream_proxy.control.engines import discovery
from slipstream_proxy.data.engines.live import LiveView


@pytest.fixture
async def second():
    one = await LoraEngine().start()
    yield one
    await one.stop()


@pytest.fixture
async def route(engine, second):
    """``await route(…)``: a router before two engines."""
    made = []

    async def start(**how) -> FakeRouter:
        made.append(await FakeRouter([engine.url, second.url], **how).start())
        return made[-1]

    yield start
    for one in made:
        await one.stop()


async def line(plane, cause: str) -> FunnelLine | None:
    _, body = await plane.ask("GET", "/status")
    return next((x for x in Funnel.model_validate(body["funnel"]).lines if x.cause == cause), None)


def live(plane) -> str:
    return plane.deps.live.value["models"]["tiny"]["live"]


async def test_adapters_reach_each_engine_and_calls_the_router(make_plane, engine, second, route):
    router = await route()
    plane = await make_plane(engine={"urls": [engine.url, second.url], "router": router.url})
    await until(lambda: len(plane.deps.engines.healthy()) == 2)
    assert (await register(plane, 1))[1]["state"] == "live"
    assert engine.adapters.keys() == second.adapters.keys() == {"tiny@1"}
    assert {path for path, _ in router.sessions} == {"/v1/chat/completions"}, "only the look at what it passes on"
    await until(lambda: plane.deps.live.value["engines"][0]["loaded"] == ["tiny@1"])
    view = LiveView(plane.config)
    view.update(plane.deps.live.value)
    assert view.servers("tiny@1", "e")[0] == router.url and view.is_router(router.url)
    assert set(view.servers("tiny@1", "e")) == {router.url, engine.url, second.url}
    second.unmounted = True  # it comes back without its adapters: the router may send calls there
    second.restart()
    await until(lambda: plane.deps.live.value["engines"][0]["loaded"] == [])
    view.update(plane.deps.live.value)
    assert view.servers("tiny@1", "e") == [engine.url] and view.servers("tiny", "e")[0] == router.url
    assert await line(plane, "router_as_engine") is None


@pytest.mark.parametrize("lists", [False, True])
async def test_a_router_in_place_of_engines_is_named_and_no_step_is_lost(make_plane, engine, second, route, lists):
    router = await route(lists=lists)
    plane = await make_plane(engine={"urls": [router.url]})
    await register(plane, 1, wait=0)
    said = await until(lambda: line(plane, "router_as_engine"))
    assert said.blocks and f'engine.router = "{router.url}"' in said.fix
    assert (engine.url in said.fix and second.url in said.fix) == lists
    assert (await state(plane, 1))["state"] in ("loading", "live")
    found = await asyncio.to_thread(lambda: list(check_engine(router.url, plane.config)))
    if lists:
        assert any(f.level == "fail" and second.url in (f.fix or "") for f in found)
    engine.adapters.pop("tiny@1", None)
    second.adapters["tiny@1"] = str(plane.config.adapters_dir / "tiny@1")  # one has it: two answers disagree
    found = await asyncio.to_thread(lambda: list(check_engine(router.url, plane.config)))
    assert any(f.level == "fail" and "a router or a Service" in f.what for f in found)


@pytest.mark.parametrize("drops", [(), ("return_token_ids",)])
async def test_a_router_that_changes_requests_is_named(make_plane, engine, second, route, drops):
    router = await route(drops=drops)
    plane = await make_plane(engine={"urls": [engine.url, second.url], "router": router.url})
    await until(lambda: len(plane.deps.engines.healthy()) == 2)
    await plane.deps.engines.check_all()
    said = await line(plane, "router_rewrites")
    assert (said is not None and "drops return_token_ids" in said.text and router.url in said.text) == bool(drops)
    found = await asyncio.to_thread(lambda: list(check_router(plane.config, plane.config.engine.urls)))
    assert [f.level for f in found] == ["warn" if drops else "ok"]


def test_a_router_needs_engines():
    with pytest.raises(ValueError, match=r"engine\.router needs engine\.urls"):
        Config.model_validate({"engine": {"router": "http://r"}})


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(discovery, "DISCOVERY_INTERVAL_S", 0.05)


async def test_engines_of_a_file_come_and_go(make_plane, engine, second, tmp_path, soon):
    """A new one has all adapters before it gets a call. One that goes is in no list any more."""
    listed = tmp_path / "engines"
    listed.write_text(engine.url)
    plane = await make_plane(engine={"urls": [f"file:{listed}"]})
    await until(plane.deps.engines.healthy)
    await register(plane, 1)
    told: list[tuple[bool, bool]] = []
    publish = plane.deps.live.set

    def watch(models, engines, *rest, **more):
        told.extend((e["ok"], "tiny@1" in e["loaded"]) for e in engines if e["url"] == second.url)
        return publish(models, engines, *rest, **more)

    plane.deps.live.set = watch
    listed.write_text(f"{engine.url}\n{second.url}/v1\n")
    await until(lambda: (True, True) in told)
    assert (True, False) not in told, "it gets no call before it has the adapter"
    listed.write_text(second.url)
    await until(lambda: [e["url"] for e in plane.deps.live.value["engines"]] == [second.url])
    assert live(plane) == "tiny@1"
    listed.unlink()
    said = await until(lambda: line(plane, "discovery"))
    assert str(listed) in said.text and [e["url"] for e in plane.deps.live.value["engines"]] == [second.url]


async def test_engines_of_a_dns_name(make_plane, engine, monkeypatch, soon):
    port, hosts = int(engine.url.rsplit(":", 1)[1]), ["127.0.0.1"]

    def answer(host, at, **_):
        assert (host, at) == ("vllm-headless", port)
        if not hosts:
            raise OSError("no such name")
        return [(0, 0, 0, "", (h, at)) for h in hosts * 2]

    monkeypatch.setattr("slipstream.shared.discovery.socket", SimpleNamespace(getaddrinfo=answer, SOCK_STREAM=1))
    plane = await make_plane(engine={"urls": [f"dns+http://vllm-headless:{port}"]})
    await until(plane.deps.engines.healthy)
    assert [e.url for e in plane.deps.engines.engines] == [engine.url]
    hosts[:] = ["127.0.0.1", "127.0.0.9"]
    await until(lambda: len(plane.deps.engines.engines) == 2)
    hosts.clear()
    await until(lambda: line(plane, "discovery"))
    assert len(plane.deps.engines.engines) == 2, "DNS may be away while the engines serve"
