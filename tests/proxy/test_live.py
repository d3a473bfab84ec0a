from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from tests.proxy.conftest import eventually
from tests.proxy.test_relay import ASK, post

from slipstream.config import Config
from slipstream_proxy.data.live import Live
from slipstream_proxy.data.routing import Routes

STATE = {
    "models": {
        "tiny": {
            "base": "tiny",
            "live": "tiny@2",
            "arms": [["tiny@1", "control", 0.25]],
            "loaded": ["tiny@1", "tiny@2"],
        }
    },
    "engines": [
        {"url": "http://a", "ok": True, "loaded": ["tiny@1", "tiny@2"]},
        {"url": "http://b", "ok": True, "loaded": ["tiny@2"]},
    ],
}


def live(tmp_path, **engine):
    return Live(Config(data_dir=str(tmp_path), engine={"urls": ["http://a/", "http://b"], "name": "tiny", **engine}))


def test_before_anything_is_known(tmp_path):
    found = live(tmp_path)
    assert not found.known and found.ready and found.decide("tiny", "-", "e") == ("tiny", "live")
    assert sorted(found.servers("tiny@9", "e")) == ["http://a", "http://b"]


def test_arms_and_affinity(tmp_path):
    found = live(tmp_path)
    found.update(STATE)
    decided = [found.decide("tiny", "-", f"e{i}") for i in range(2000)]
    assert 400 < decided.count(("tiny@1", "control")) < 600 and set(decided) == {
        ("tiny@1", "control"),
        ("tiny@2", "live"),
    }
    assert found.decide("tiny", "-", "e1") == found.decide("tiny", "-", "e1")
    assert found.servers("tiny@1", "e") == ["http://a"] and found.servers("tiny@3", "e") == []
    first = {f"e{i}": found.servers("tiny@2", f"e{i}")[0] for i in range(200)}
    assert set(first.values()) == {"http://a", "http://b"}
    found.mark_down("http://a")
    assert all(found.servers("tiny", e)[0] == "http://b" for e in first)
    found.mark_up("http://a")
    assert {e: found.servers("tiny@2", e)[0] for e in first} == first
    assert (
        found.replacement("tiny", "tiny@0") == "tiny@2" and found.is_adapter("tiny@2") and not found.is_adapter("tiny")
    )


def test_a_malformed_state_changes_nothing(tmp_path):
    found = live(tmp_path)
    found.update(STATE)
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        found.update({"engines": [{"nope": 1}], "models": {}})
    assert found.decide("tiny", "-", "x")[0].startswith("tiny@")


def test_last_state_is_read_at_the_start(tmp_path):
    (tmp_path / "live.json").write_text(json.dumps(STATE))
    found = live(tmp_path)
    assert found.known and found.models["tiny"].live == "tiny@2"
    (tmp_path / "live.json").write_text("{")
    assert not live(tmp_path).known


def test_routes():
    models = {
        "gpt-4o": {"trained": "tiny"},
        "gpt-*": {"base": "tiny"},
        "ext": {"upstream": "http://x/v1", "api_key_env": "K", "model": "m"},
    }
    routes = Routes(Config(engine={"name": "tiny"}, models=models))
    assert routes.of("gpt-4o").kind == "trained" and routes.of("gpt-3").kind == "base" and routes.of("ext").model == "m"
    assert (
        routes.of("tiny").kind == "trained"
        and routes.of("tiny@3") == routes.of("tiny@3")
        and routes.of("tiny@3").kind == "base"
    )
    assert routes.names() == ["gpt-4o", "ext", "tiny"]


class Control:
    """The control plane's socket, as far as the data plane talks to it."""

    def __init__(self, path):
        self.path, self.pins, self.uploads = path, [], []
        self.state, self.changed = STATE, asyncio.Event()

    async def start(self):
        app = web.Application(client_max_size=2**30)
        app.router.add_get("/internal/live", self.live)
        app.router.add_post("/internal/pin", self.pin)
        app.router.add_get(
            "/internal/metrics",
            lambda r: asyncio.sleep(
                0,
                web.Response(
                    text="# TYPE x_total counter\nx_total 3\n# TYPE slipstream_in_flight gauge\nslipstream_in_flight 9\n"
                ),
            ),
        )
        app.router.add_route("*", "/{path:.*}", self.any)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self.runner.setup()
        await web.UnixSite(self.runner, str(self.path)).start()
        return self

    async def live(self, request):
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(json.dumps(self.state).encode() + b"\n{}\n")
            self.changed.clear()
            await self.changed.wait()

    async def pin(self, request):
        self.pins.append(await request.json())
        return web.json_response({"adapter": "tiny@1", "arm": "control"})

    async def any(self, request):
        self.uploads.append((request.path, dict(request.headers), len(await request.read())))
        return web.json_response({"ok": True})


@pytest.fixture
async def control(tmp_path, fake):
    (tmp_path / "data").mkdir()
    fake.models |= {"tiny@1", "tiny@2"}
    made = Control(tmp_path / "data" / "control.sock")
    both = ["tiny@1", "tiny@2"]
    made.state = {**STATE, "engines": [{"url": fake.url, "ok": True, "loaded": both}]}
    yield await made.start()
    await made.runner.cleanup()


async def test_an_episode_is_pinned_once_and_keeps_its_adapter(start, fake, control):
    proxy = await start()
    await eventually(lambda: proxy.plane.live.connected)
    replies = await asyncio.gather(
        *(post(proxy.url, ASK, headers={"x-slipstream-episode": "e", "x-slipstream-task": "t"}) for _ in range(6))
    )
    assert {r[1]["x-slipstream-adapter"] for r in replies} == {"tiny@1"} and all(
        json.loads(r[2])["model"] == "tiny" for r in replies
    )
    assert control.pins == [{"key": "-", "episode": "e", "model": "tiny", "task": "t", "split": "train"}]
    assert {(f.head["pin"], f.head["arm"], f.head["adapter"], f.head["trained"]) for f in await proxy.record(6)} == {
        ("control", "control", "tiny@1", "tiny")
    }
    # the pinned version is unloaded: the episode moves to the live one
    control.state = {**control.state, "engines": [{"url": fake.url, "ok": True, "loaded": ["tiny@2"]}]}
    control.changed.set()
    await eventually(lambda: proxy.plane.live.servers("tiny@1", "e") == [])
    _, headers, _ = await post(proxy.url, ASK, headers={"x-slipstream-episode": "e"})
    assert headers["x-slipstream-adapter"] == "tiny@2" and (await proxy.record(7))[-1].head["pin"] == "moved"


async def test_calls_go_on_without_the_control_plane(start, fake, control):
    proxy = await start()
    await eventually(lambda: proxy.plane.live.connected)
    await control.runner.cleanup()
    await eventually(lambda: not proxy.plane.live.connected)
    status, headers, _ = await post(proxy.url, ASK, headers={"x-slipstream-episode": "new"})
    assert status == 200 and headers["x-slipstream-adapter"] in ("tiny@1", "tiny@2")
    assert (await proxy.record())[0].head["pin"] == "local"
    again = await Control(control.path).start()
    await eventually(lambda: proxy.plane.live.connected)
    await again.runner.cleanup()


async def test_forwarding(start, fake, control):
    proxy = await start()
    await post(proxy.url, ASK, headers={"x-slipstream-episode": "e"})
    status, _, body = await post(
        proxy.url,
        b"x" * 3_000_000,
        path="/slipstream/v1/adapters?a=%2Fb",
        headers={"x-slipstream-auth": '{"key":"evil","scopes":["admin"]}', "authorization": "Bearer k"},
    )
    assert status == 200 and json.loads(body) == {"ok": True}
    path, headers, size = control.uploads[-1]
    low = {k.lower(): v for k, v in headers.items()}
    assert (
        path == "/slipstream/v1/adapters"
        and size == 3_000_000
        and json.loads(low["x-slipstream-auth"])["key"] == "-"
        and "authorization" not in low
    )
    await post(proxy.url, b"{}", path="/slipstream/v1/episodes/e/done")
    _, headers, _ = await post(proxy.url, ASK, headers={"x-slipstream-episode": "e"})
    assert headers["x-slipstream-episode"] == "e~2"
    import aiohttp

    async with aiohttp.ClientSession() as session:
        async with session.get(proxy.url + "/metrics") as reply:
            text = await reply.text()
        async with session.get(proxy.url + "/readyz") as reply:
            assert reply.status == 200
    assert (
        "x_total 3" in text and "slipstream_in_flight 9" not in text and text.count("# TYPE slipstream_in_flight ") == 1
    )
    assert 'slipstream_calls_total{format="chat",outcome="ok",status="2xx",adapter="' in text
