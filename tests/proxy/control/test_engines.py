from __future__ import annotations

import asyncio
import contextlib

import pytest
from aiohttp import web
from tests.support.adapters import write_adapter
from tests.support.fake_engine import LoraEngine
from tests.support.served import Served

from slipstream.config import Config
from slipstream.engines.engine import EngineAway, EngineSampling
from slipstream_proxy.control.engines import pool
from slipstream_proxy.control.engines.pool import EnginePool, OwnAdapters
from slipstream_proxy.control.engines.replica import EngineFailed, EngineLacks, EngineRefused, EngineReplica


def pool_of(*urls: str, own: OwnAdapters = OwnAdapters(), tenant: str = "", **settings: object) -> EnginePool:
    """``settings``: of ``engine``. No adapter is ours, if ``own`` names none."""
    return EnginePool(Config(tenant=tenant, engine={"urls": urls, "health_interval": 0.1, **settings}), own)


@pytest.fixture
async def engines(engine):
    made = pool_of(engine.url + "/v1/", engine.url)
    await made.start()
    yield made
    await made.stop()


async def test_an_answer_without_end_is_not_kept(engines):
    async def endless(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        with contextlib.suppress(OSError):
            while True:
                writer.write(b" " * 2**20)
                await writer.drain()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/models"
    try:
        with pytest.raises(EngineAway, match="more than"):
            await engines.ask("GET", url)
    finally:
        server.close()


def at(engines: EnginePool) -> EngineReplica:
    (one,) = engines.engines  # the same engine named twice is one
    return one


async def test_an_adapter_is_loaded_once_and_warmed(engines, engine, tmp_path):
    path = str(write_adapter(tmp_path / "tiny@1"))
    await engines.load(at(engines), "tiny@1", path)
    await engines.load(at(engines), "tiny@1", path)
    assert engine.calls[:2] == [("load", "tiny@1"), ("warm", "tiny@1")]
    assert set(engine.calls[2:]) == {("warm", "tiny@1")}
    await engines.unload("tiny@1")
    assert engine.adapters == {} and at(engines).loaded == set()


async def test_one_that_another_proxy_loaded_from_the_same_path_is_ours(engines, engine, tmp_path):
    path = str(write_adapter(tmp_path / "tiny@1"))
    engine.adapters["tiny@1"] = path + "/"
    await engines.load(at(engines), "tiny@1", path)
    assert ("unload", "tiny@1") not in engine.calls


async def test_one_that_came_to_another_proxy_of_the_fleet_is_ours(engine, tmp_path):
    """The same folder, mounted at another place there."""
    here, there = (str(write_adapter(tmp_path / n / "tiny@1")) for n in ("here", "there"))
    engine.adapters["tiny@1"] = there
    engines = pool_of(engine.url, own=OwnAdapters(known=lambda name: {"tiny@1": (here, there)}.get(name, ())))
    await engines.start()
    await engines.load(at(engines), "tiny@1", here)
    assert engine.adapters == {"tiny@1": there}
    await engines.stop()


async def test_anothers_adapter_of_our_name_makes_room_once(engines, engine, tmp_path):
    """A fresh data folder beside an engine that ran with another: its ``tiny@1`` is not what our trainer made."""
    ours, theirs = (str(write_adapter(tmp_path / n / "tiny@1")) for n in ("ours", "theirs"))
    engine.adapters["tiny@1"] = theirs
    await engines.load(at(engines), "tiny@1", ours)
    assert engine.adapters == {"tiny@1": ours}
    engine.adapters["tiny@1"] = theirs
    at(engines).loaded.clear()
    with pytest.raises(EngineRefused, match="two proxies"):
        await engines.load(at(engines), "tiny@1", ours)


async def test_one_that_cannot_be_unloaded_is_no_reason_to_serve_it(engines, engine, tmp_path):
    engine.adapters["tiny@1"] = "/elsewhere/tiny@1"
    engine.keep_all = True
    with pytest.raises(EngineRefused, match="has another adapter named tiny@1, of /elsewhere"):
        await engines.load(at(engines), "tiny@1", str(write_adapter(tmp_path / "tiny@1")))
    assert at(engines).loaded == set()


async def test_anothers_adapter_does_not_count_as_loaded(engine, tmp_path):
    path = str(write_adapter(tmp_path / "tiny@1"))
    engine.adapters |= {"tiny@1": "/elsewhere/tiny@1", "tiny@2": "/elsewhere/tiny@2"}
    own = OwnAdapters(lambda: {"tiny@1": path}, lambda name: {"tiny@1": (path,)}.get(name, ()))
    engines = pool_of(engine.url, own=own)
    await engines.start()
    await engines.check_all()
    assert (at(engines).ok, at(engines).loaded) == (True, {"tiny@1"})
    assert engine.adapters == {"tiny@1": path, "tiny@2": "/elsewhere/tiny@2"}  # what is not ours is left alone
    await engines.stop()


async def test_what_an_engine_says_no_to(engines, engine, tmp_path):
    with pytest.raises(EngineLacks):
        await engines.load(at(engines), "tiny@1", str(tmp_path / "nothing"))
    engine.refuse["tiny@1"] = 400
    with pytest.raises(EngineRefused):
        await engines.load(at(engines), "tiny@1", str(write_adapter(tmp_path / "tiny@1")))
    engine.refuse["tiny@2"] = 500
    with pytest.raises(EngineFailed):
        await engines.load(at(engines), "tiny@2", str(write_adapter(tmp_path / "tiny@2")))
    await engine.stop()
    with pytest.raises(EngineAway):
        await engines.load(at(engines), "tiny@3", str(write_adapter(tmp_path / "tiny@3")))
    await engines.check_all()
    assert not at(engines).ok and at(engines).error and engines.healthy() == []


async def test_a_key_goes_with_every_request(tmp_path):
    engine = await LoraEngine().start()
    engines = pool_of(engine.url, api_key="secret")
    assert engines.headers == {"authorization": "Bearer secret"}
    await engine.stop()


@pytest.mark.parametrize("parser", [False, True])
async def test_whether_an_engine_has_a_parser_is_asked_once(engines, engine, parser):
    engine.parser = parser
    for _ in range(3):
        await engines.check(at(engines))
    assert at(engines).ok and at(engines).public()["parses"] is parser
    assert [body["max_tokens"] for body, _ in engine.seen if "include_reasoning" in body] == [1]


async def test_what_an_engine_samples_with_is_told_to_the_workers(engines, engine):
    engine.plugin, engine.sampling = True, {"temperature": 0.7, "top_k": 20}
    await engines.check(at(engines))
    assert at(engines).public()["sampling"] == engine.sampling
    assert at(engines).public()["sampling_known"] is True
    engine.plugin = engine.up = False
    await engines.check(at(engines))
    engine.up = True
    await engines.check(at(engines))  # another vLLM may be there now
    assert at(engines).public()["sampling_known"] is False
    engine.up, engine.sampling = False, {}
    await engines.check(at(engines))
    engine.up = True
    await engines.check(at(engines))
    assert at(engines).sampling == EngineSampling()


async def test_what_an_engine_sampled_with_before_it_was_started_again_counts_no_more(engines, engine, monkeypatch):
    await engines.check(at(engines))
    assert at(engines).sampling == EngineSampling()
    engine.up = False
    await engines.check(at(engines))
    engine.up = True
    monkeypatch.setattr(pool, "SAMPLING_TIMEOUT", 0.0)  # it is too slow to say
    await engines.check(at(engines))
    assert at(engines).healthy and at(engines).public()["sampling_known"] is False


async def test_an_engine_that_cannot_chat_may_have_a_parser(engines, engine):
    engine.fail_with = 400
    await engines.check(at(engines))
    assert at(engines).ok and at(engines).facts.parses


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/load_lora_adapter"])
async def test_no_redirect_of_an_engine_is_followed(path):
    """Nor by the control plane's own questions, which carry the engine's key."""
    met = []

    async def elsewhere(request: web.Request) -> web.Response:
        met.append(request.path)
        return web.json_response({"data": []})

    away = web.Application()
    away.router.add_route("*", "/{all:.*}", elsewhere)
    with Served(away) as url:

        async def redirect(request: web.Request) -> web.Response:
            return web.Response(status=307, headers={"location": url + request.path})

        app = web.Application()
        app.router.add_route("*", path, redirect)
        with Served(app) as base:
            made = pool_of(base, api_key="sk-test")
            await made.start()
            try:
                with pytest.raises(EngineAway, match="redirects .status 307.*engine.urls"):
                    await made.ask("GET" if "load" not in path else "POST", base + path)
                await made.check(made.engines[0])
                assert not made.engines[0].healthy and met == []
            finally:
                await made.stop()


async def test_what_the_plugin_counts_is_the_tenants_own_and_survives_silence(engine):
    engine.plugin = True
    engine.use = {"acme": {"calls": 5, "loads": 2, "reads": 1}, "": {"calls": 70, "loads": 3}}
    for tenant, calls in (("acme", 5), ("", 70), ("nobody", 0)):
        made = pool_of(engine.url, engine.url + "/v1", tenant=tenant)
        await made.start()
        try:
            await made.check(at(made))
            assert made.use().calls == calls
            engine.use, before = {tenant: {"calls": "many"}}, engine.use
            await made.check(at(made))
            assert made.use().calls == calls and at(made).ok, "an answer that cannot be read costs nothing"
            engine.use = before
        finally:
            await made.stop()
