from __future__ import annotations

import json

import pytest
from tests.support.dataplane import ASK, STATE, FakeControlSocket, eventually, post

from slipstream.config import Config
from slipstream_proxy.data.engines.live import LiveView


def live(tmp_path, **engine):
    return LiveView(
        Config(data_dir=str(tmp_path), engine={"urls": ["http://a/", "http://b"], "name": "tiny", **engine})
    )


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
    assert found.replacement("tiny", "tiny@0") == "tiny@2"


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


async def test_calls_go_on_without_the_control_plane(start, fake, control):
    proxy = await start()
    await eventually(lambda: proxy.plane.live.connected)
    await control.runner.cleanup()
    await eventually(lambda: not proxy.plane.live.connected)
    status, headers, _ = await post(proxy.url, ASK, headers={"x-slipstream-episode": "new"})
    assert status == 200 and headers["x-slipstream-adapter"] in ("tiny@1", "tiny@2")
    assert (await proxy.record())[0].head["pin"] == "local"
    again = await FakeControlSocket(control.path).start()
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
