from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import until
from tests.support.dataplane import ASK, STATE, FakeControlSocket, post

from slipstream.config import Config
from slipstream_proxy.assignment import assign
from slipstream_proxy.control.engines.live import LiveState, ModelLive
from slipstream_proxy.data.engines.live import LiveView


def live(tmp_path, **engine):
    return LiveView(
        Config(data_dir=str(tmp_path), engine={"urls": ["http://a/", "http://b"], "name": "tiny", **engine})
    )


def test_before_anything_is_known(tmp_path):
    found = live(tmp_path)
    assert not found.known and found.ready and found.decide("tiny", "-", None, "e", "train", {})[:2] == ("tiny", "live")
    assert sorted(found.servers("tiny@9", "e")) == ["http://a", "http://b"]


def test_arms_and_affinity(tmp_path):
    found = live(tmp_path)
    found.update(STATE)
    decided = [found.decide("tiny", "-", None, f"e{i}", "train", {})[:2] for i in range(2000)]
    assert 400 < decided.count(("tiny@1", "control")) < 600 and set(decided) == {
        ("tiny@1", "control"),
        ("tiny@2", "live"),
    }
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
    assert found.decide("tiny", "-", None, "x", "train", {})[0].startswith("tiny@")


def test_last_state_is_read_at_the_start(tmp_path):
    (tmp_path / "live.json").write_text(json.dumps(STATE))
    found = live(tmp_path)
    assert found.known and found.models["tiny"].live == "tiny@2" and not found.sampling_known
    found.update(STATE)
    assert found.sampling_known
    (tmp_path / "live.json").write_text("{")
    assert not live(tmp_path).known


async def test_calls_go_on_without_the_control_plane(start, fake, control):
    proxy = await start()
    await until(lambda: proxy.plane.live.connected)
    await control.runner.cleanup()
    await until(lambda: not proxy.plane.live.connected)
    status, headers, _ = await post(proxy.url, ASK, headers={"x-slipstream-episode": "new"})
    assert status == 200 and headers["x-slipstream-adapter"] in ("tiny@1", "tiny@2")
    assert (await proxy.record())[0].head["pin"] == "local"
    again = await FakeControlSocket(control.path).start()
    await until(lambda: proxy.plane.live.connected)
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


ARMS = st.lists(
    st.tuples(st.sampled_from(["control", "best", "candidate"]), st.floats(0.0, 0.3)),
    max_size=3,
    unique_by=lambda a: a[0],
)


@settings(max_examples=100)
@given(ARMS, st.integers(0, 2**32))
def test_workers_and_the_control_plane_agree_always(tmp_path_factory, arms, seed):
    """10⁵ cases, over the state as the control plane publishes it."""
    folder, random = tmp_path_factory.mktemp("live"), Random(seed)
    published, registry = (
        LiveState(folder / "live.json"),
        [(f"tiny@{i}", name, share) for i, (name, share) in enumerate(arms)],
    )
    kept = {"tag.customer=acme": "tiny@2", "task=t1": "tiny@3"}
    first = random.choice([[], ["key=ü", "tag.env=x"]])
    model = ModelLive(base="tiny", live="tiny@9", arms=registry, kept=kept, first=first)
    published.set({"tiny": model}, [{"url": "http://a", "ok": True, "loaded": []}])
    worker = LiveView(Config(data_dir=str(folder), engine={"name": "tiny"}))
    worker.update(json.loads(json.dumps(published.value)))
    for _ in range(1000):
        key, task, episode = (random.choice([None, "", "ü", "\ud800"]) or f"x{random.random()}" for _ in range(3))
        split, task = random.choice(["train", "eval"]), random.choice([None, task])
        tags = random.choice([{}, {"customer": random.choice(["acme", "other"]), "env": "x"}])
        asked = (key, random.choice([task, "t1"]), episode, split, tags)
        assert worker.decide("tiny", *asked) == assign("tiny@9", registry, *asked, kept, first)
    assert worker.decide("tiny", "", None, "e", "train", {"customer": "acme"})[0] == "tiny@2"
    assert worker.decide("tiny", "", "t1", "e", "off", {})[0] == "tiny@3"
    assert worker.decide("tiny", "", "t1", "e", "eval", {})[0] == "tiny@9"
    assert not worker.is_settled("tiny", new=True)


def test_where_there_is_nothing_to_choose(tmp_path, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr("slipstream_proxy.data.engines.live.time.monotonic", lambda: clock[0])
    found = live(tmp_path)

    def publish(adapter: str, *arms: tuple[str, str, float]) -> None:
        found.update({"models": {"tiny": {"base": "tiny", "live": adapter, "arms": arms}}})

    publish("tiny")
    assert found.is_settled("tiny", new=False)
    publish("tiny@1")
    assert found.is_settled("tiny", new=True) and not found.is_settled("tiny", new=False)
    clock[0] += found._window + 1.0
    publish("tiny@1")
    assert found.is_settled("tiny", new=False)
    publish("tiny@1", ("tiny", "control", 0.1))
    assert not found.is_settled("tiny", new=True) and not found.is_settled("other", new=True)
    publish("tiny@1")
    assert found.is_settled("tiny", new=True)
    found.update({"models": {"tiny": {"base": "tiny", "live": "tiny@1"}}, "asks": True})  # a replay has to give way
    assert found.asks and found.is_settled("tiny", new=True)
