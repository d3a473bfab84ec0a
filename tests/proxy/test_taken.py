"""While the control plane hangs or is away, workers take rewards, labels, end marks and feedback: none lost, doubled or out of order."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import aiohttp
import httpx
import pytest
import tomli_w
from tests.support import process, slipstream, wait_for
from tests.support.dataplane import ASK
from tests.support.fake_engine import FakeEngine

from slipstream.config import Config
from slipstream_proxy.data.observe.losses import LossCount, read_losses
from slipstream_proxy.data.routes.taken import EndingRequest
from slipstream_proxy.process.parent import Parent, bind

REWARDS = "/slipstream/v1/episodes/e/rewards"


async def ask(proxy, method, path, **kw):
    async with aiohttp.ClientSession() as session, session.request(method, proxy.url + path, **kw) as reply:
        return reply.status, reply.headers, await reply.read()


async def hang(reader, writer):
    while await reader.read(2**16):
        pass
    writer.close()


@pytest.mark.parametrize("away", [True, False])
async def test_a_valid_reward_is_taken_within_seconds(start, fake, away, request):
    proxy = await start()
    if not away:
        request.addfinalizer((await asyncio.start_unix_server(hang, str(proxy.plane.config.socket))).close)
    call = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
    headers = {"x-slipstream-episode": "e"}
    await ask(proxy, "POST", "/v1/chat/completions", json=call, headers=headers)
    began = asyncio.get_running_loop().time()
    status, got, body = await ask(proxy, "POST", REWARDS, json={"value": 0.5})
    ack = json.loads(body)
    assert (status, ack["stored"], ack["known"], ack["done"], got["x-slipstream-done"]) == (
        200,
        True,
        True,
        True,
        "true",
    )
    assert "counts once it is back" in ack["fix"] and asyncio.get_running_loop().time() - began < 5
    reply = await ask(proxy, "POST", "/v1/chat/completions", json=call, headers=headers)
    assert reply[1]["x-slipstream-episode"] == "e~2", "the run is over for its worker, too"
    await ask(proxy, "POST", "/slipstream/v1/episodes/f/feedback", json={"text": "worse", "thumb": "down"})
    await ask(proxy, "POST", "/slipstream/v1/episodes/f/done")
    mutations = [f.head for f in proxy.frames() if "op" in f.head]
    assert [(m["op"], m["data"]["episode"]) for m in mutations] == [("reward", "e"), ("reward", "f"), ("done", "f")]
    assert len({m["id"] for m in mutations}) == 3 and mutations[0]["data"]["reward"]["done"] is True


@pytest.mark.parametrize(
    ("what", "body", "named", "scopes"),
    [
        ("rewards", {"value": 1}, None, ["inference"]),
        ("rewards", {"value": "high"}, None, ["inference", "reward"]),
        ("rewards", {"value": 1, "source": "human"}, None, ["inference", "reward"]),
        ("rewards", {"value": 1, "source": "Human"}, None, ["inference", "grade"]),
        ("rewards", {"value": 1, "source": "judge"}, None, ["inference", "judge"]),
        ("rewards", {"value": 1, "name": "judge"}, None, ["inference", "reward"]),
        ("rewards", {"value": 1}, "other", ["inference", "reward"]),
        ("rewards", {"value": 1}, None, ["grade"]),
        ("done", {"x": 1}, None, ["inference"]),
        ("feedback", {}, None, ["inference", "reward"]),
    ],
)
async def test_what_only_the_control_plane_can_check_waits_for_it(start, fake, what, body, named, scopes):
    proxy = await start()
    asked = EndingRequest(
        what, named or "k", "e", json.dumps(body).encode(), {"key": "k", "scopes": scopes}, named, False
    )
    assert proxy.plane.taken.change(asked) is None


async def test_a_stopped_control_plane_costs_no_reward_and_none_counts_twice(tmp_path: Path) -> None:
    engine = await FakeEngine().start()
    config, data, log = tmp_path / "slipstream.toml", tmp_path / "data", tmp_path / "log"
    tree = {"data_dir": str(data), "proxy": {"port": 0, "workers": 2}, "engine": {"urls": [engine.url], "name": "tiny"}}
    config.write_text(tomli_w.dumps(tree))
    try:
        with process(slipstream("proxy", "--config", str(config)), log) as p:

            def up() -> str:
                assert p.poll() is None, log.read_text()[-3000:]
                url: str = json.loads((data / "proxy.json").read_text())["url"]
                return url if httpx.get(url + "/readyz", timeout=10, trust_env=False).is_success else ""

            url = await asyncio.to_thread(wait_for, up, 90, 0.1, "the proxy is up")
            async with (
                httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(data / "control.sock"))) as inside,
                httpx.AsyncClient(trust_env=False, timeout=30, base_url=url) as client,
            ):
                pid = (await inside.get("http://control/internal/healthz")).json()["pid"]
                for n in range(6):
                    await client.post("/v1/chat/completions", json=ASK, headers={"x-slipstream-episode": f"e{n}"})
                os.kill(pid, signal.SIGSTOP)
                try:
                    for value in (1.0, 2.0, 3.0):  # in order: the last one counts
                        posts = [
                            client.post(f"/slipstream/v1/episodes/e{n}/rewards", json={"value": value, "done": False})
                            for n in range(6)
                        ]
                        assert [r.status_code for r in await asyncio.gather(*posts)] == [200] * 6
                    posted = await client.post("/slipstream/v1/episodes/e0/rewards", json={"value": 4.0, "key": "once"})
                    again = await client.post("/slipstream/v1/episodes/e0/rewards", json={"value": 9.0, "key": "once"})
                    assert (posted.status_code, again.status_code) == (200, 200)
                    assert (await client.post("/slipstream/v1/episodes/e1/done")).json()["stored"]
                    for label in ({"value": 5.0}, {"value": 6.0, "meta": {"edited": "a better answer"}}):
                        body = {"source": "human", "name": "judge", "done": False, **label}
                        labelled = await client.post("/slipstream/v1/episodes/e2/rewards?key=-", json=body)
                        assert labelled.status_code == 200 and labelled.json()["stored"], labelled.text
                finally:
                    os.kill(pid, signal.SIGCONT)

                async def values(episode: str) -> tuple[list[float], str]:
                    found = (await client.get(f"/slipstream/v1/episodes/{episode}")).json()
                    return [r["value"] for r in found.get("rewards", [])], found.get("state", "")

                for _ in range(200):
                    found = [await values(f"e{n}") for n in range(6)]
                    if [len(v) for v, _ in found] == [4, 3, 5, 3, 3, 3]:
                        break
                    await asyncio.sleep(0.1)
                await asyncio.sleep(1)  # what the control plane had got before it stopped comes twice
                found = [await values(f"e{n}") for n in range(6)]
                assert found[0] == ([1.0, 2.0, 3.0, 4.0], "done")
                assert found[1:3] == [([1.0, 2.0, 3.0], "done"), ([1.0, 2.0, 3.0, 5.0, 6.0], "open")]
                assert found[3:] == [([1.0, 2.0, 3.0], "open")] * 3
                audit = (await client.get("/slipstream/v1/audit?action=label")).json()["entries"]
                noted = [(e["target"], e["key"], e["detail"]["value"], e["detail"]["edited"]) for e in audit]
                assert noted == [("e2", "-", 6.0, True), ("e2", "-", 5.0, False)], "each is in the audit log once"
    finally:
        await engine.stop()


def test_what_was_lost_stays_lost_over_a_restart(tmp_path: Path) -> None:
    config = Config(data_dir=str(tmp_path))
    folder = config.root / "metrics"
    LossCount(folder, 0).add(1158, OSError(28, "full"))
    (folder / "data0.json").write_text("{}")
    Parent(config, bind("127.0.0.1", 0))._clear_metrics()
    assert read_losses(folder).calls == 1158 and not (folder / "data0.json").exists()
    LossCount(folder, 0).add(1, OSError(28, "full"))
    assert read_losses(folder).calls == 1159
