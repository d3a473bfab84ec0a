"""What is forgotten is nowhere: each field that a caller can fill, in each place that a deployment keeps."""

from __future__ import annotations

import json
import logging
import re

import aiohttp
import pytest
from tests.support.dataplane import Proxy
from tests.support.fake_engine import LoraEngine
from tests.support.plane import API, Plane, make_config, until
from tests.support.postgres import fresh_schema, postgres  # noqa: F401 - a fixture

from slipstream_proxy.control.storage import forgetter
from slipstream_proxy.store.tables import schema

ROUTES = (
    *("status", "episodes", "episodes?state=deleted", "groups", "batches", "audit", "annotations", "labels/queue"),
    *("training/events", "adapters", "groups/parked", "export?format=jsonl", "learning?by=adapter&each=task"),
)
VIEWS = ("episodes", "calls", "messages", "rewards")


def secret(field: str) -> str:
    """Another text for each field, which says where it came from."""
    return f"zq7{field}zq7"


class Deployment:
    """A data plane and a control plane on one folder, and what they keep."""

    def __init__(self, config, engine: LoraEngine) -> None:
        self.config = config
        self.control, self.proxy = Plane(config, engine), Proxy(config)

    async def start(self) -> None:
        await self.control.start()
        await self.control.control.serve()
        await self.proxy.start()
        await until(lambda: self.proxy.plane.live.connected)

    async def stop(self) -> None:
        await self.proxy.stop()
        await self.control.stop()

    async def post(self, path: str, body: object, headers: dict[str, str] | None = None) -> dict:
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.proxy.url + path, json=body, headers=headers) as reply,
        ):
            assert reply.status == 200, await reply.text()
            return await reply.json()

    async def run(self, name: str, value: float) -> None:
        """A run in which every field that a caller can fill holds a secret."""
        episode = f"{secret('episode')}-{name}"
        headers = {
            "x-slipstream-episode": episode,
            "x-slipstream-task": secret("task"),
            "x-slipstream-split": secret("split") if name == "evil" else "train",
            "x-slipstream-tag-user": secret("user"),
            f"x-slipstream-tag-{secret('tagname')}": secret("tag"),
            "user-agent": secret("agent"),
        }
        called = {"name": secret("function"), "arguments": json.dumps({"to": secret("arguments")})}
        body = {
            "model": "tiny",
            "temperature": 1.0,
            "user": secret("body"),
            "metadata": {"other": secret("metadata")},
            "tools": [{"type": "function", "function": {"name": secret("tool"), "description": secret("description")}}],
            "messages": [
                {"role": "system", "content": secret("system")},
                {"role": "user", "content": secret("message"), "name": secret("name")},
                {"role": "assistant", "tool_calls": [{"id": secret("id"), "type": "function", "function": called}]},
                {"role": "tool", "tool_call_id": secret("id"), "content": secret("result")},
            ],
        }
        await self.post("/v1/chat/completions", body, headers)
        where = f"{API}/episodes/{episode}"
        reward = {"name": secret("reward"), "source": secret("source"), "reason": secret("reason"), "done": False}
        await self.post(f"{where}/rewards", {**reward, "value": 1, "key": secret("key"), "meta": {"m": secret("meta")}})
        human = {"source": "human", "reason": secret("note"), "meta": {"edited": secret("edited")}, "name": "label"}
        await self.post(f"{where}/rewards", {**human, "value": 1.0, "done": False})
        await self.post(f"{where}/rewards", {"value": value})

    async def ask_unknown_model(self) -> None:
        body = {"model": secret("model"), "messages": [{"role": "user", "content": "x"}]}
        headers = {"x-slipstream-episode": f"{secret('episode')}-lost", "x-slipstream-tag-user": secret("user")}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.proxy.url}/v1/chat/completions", json=body, headers=headers) as reply,
        ):
            assert reply.status == 404

    async def judge_and_train(self) -> None:
        ask = self.control.ask
        status, lease = await until(
            lambda: self._given("/groups/lease", {"worker": "j", "names": ["other"], "limit": 8})
        )
        assert status == 200
        for group in lease["groups"]:
            scores = [
                {
                    "episode": e["episode"]["id"],
                    "value": 1.0,
                    "source": "judge",
                    "name": "other",
                    "reason": secret("judged"),
                }
                for e in group["episodes"]
            ]
            given = {"lease": lease["lease"], "scores": scores}
            assert (await ask("POST", f"/groups/{group['id']}/scores", given))[0] == 200
        _, lease = await self._given("/groups/lease", {"worker": "j", "names": ["third"], "limit": 8})
        failed = {"lease": lease["lease"], "failed": f"no number: {secret('failure')}"}
        assert (await ask("POST", f"/groups/{lease['groups'][0]['id']}/scores", failed))[0] == 200
        await ask("PUT", "/judge/cache/judge-1", {"key": "judge-1", "value": {"why": secret("cached")}})
        wanted = {"worker": "t", "model": "tiny", "min_groups": 1, "max_groups": 1, "max_staleness": 9}
        async with self.control.client.post(f"{API}/batches/lease", json=wanted, headers=self.control.as_()) as r:
            assert r.status == 200
            batch, lease_id = r.headers["x-slipstream-batch"], r.headers["x-slipstream-lease"]
        advantages = {f"-/{secret('episode')}-a": 1.0, f"{secret('episode')}-b": -1.0}
        ack = {"lease": lease_id, "outcome": "trained", "adapter": "tiny@1", "step": 1, "advantages": advantages}
        assert (await ask("POST", f"/batches/{batch}/ack", ack))[0] == 200

    async def _given(self, path: str, body: dict) -> tuple[int, dict] | None:
        status, found = await self.control.ask("POST", path, body)
        return (status, found) if status == 200 else None

    async def kept(self) -> dict[str, str]:
        """Place → all that stands there, as text."""
        metrics = self.config.root / "metrics"
        self.proxy.plane.metrics.save(metrics / "data0.json")
        found = {str(p): p.read_bytes().decode("latin-1") for p in self.config.root.rglob("*") if p.is_file()}
        store = self.control.deps.store
        with store.db.read() as tx:
            days = [schema.table_of(day) for (day,) in tx.all("SELECT day FROM t_days")]
            found |= {table: str(tx.all(f"SELECT * FROM {table}")) for table in (*schema.TABLE_COLUMNS, *days)}
        async with aiohttp.ClientSession() as session:
            pages = [f"{API}/{path}" for path in ROUTES]
            for kind in ("groups", "batches"):
                listed = (await self.control.ask("GET", f"/{kind}"))[1][kind]
                pages += [f"{API}/{kind}/{one['id']}" for one in listed]
            for path in ("/metrics", *pages):
                async with session.get(self.proxy.url + path) as reply:
                    assert reply.status == 200, (path, await reply.text())
                    found[path] = await reply.text()
        for view in VIEWS:
            found[f"sql {view}"] = str(await self.control.ask("POST", "/sql", {"query": f"select * from {view}"}))
        return found


@pytest.fixture(params=["duckdb", pytest.param("postgres", marks=pytest.mark.slow)])
async def deployment(request, tmp_path, monkeypatch):
    monkeypatch.setattr(forgetter, "QUIET_BEFORE_REWRITE_S", 0.2)
    monkeypatch.setattr("slipstream_proxy.control.status.status.LOOK_EVERY", 0.0)  # what /metrics may be behind
    engine = await LoraEngine().start()
    url = fresh_schema(request.getfixturevalue("postgres")) if request.param == "postgres" else None
    sections = {"groups": {"size": 2}, **({"store": {"url": url}} if url else {})}
    made = Deployment(make_config(tmp_path, engine, **sections), engine)
    await made.start()
    yield made
    await made.stop()
    await engine.stop()


def told(kept: dict[str, str]) -> set[tuple[str, str]]:
    """(field, place) of each secret that stands somewhere, also of a piece of one."""
    return {
        (found[:30], place) for place, text in kept.items() for found in re.findall("zq7([a-z]*?)(?:zq|$|[^a-z])", text)
    }


async def test_what_is_forgotten_is_nowhere(deployment, caplog):
    caplog.set_level(logging.INFO)
    for name, value in (("a", 0.0), ("b", 1.0), ("evil", 1.0)):
        await deployment.run(name, value)
    await deployment.ask_unknown_model()
    await deployment.judge_and_train()
    stood = told(await deployment.kept())
    before = {field for field, _ in stood}
    assert {"episode", "task", "user", "tag", "arguments", "note", "edited", "judged", "cached", "failure"} <= before
    assert {field for field, place in stood if place == "/metrics"} <= {"source"}
    assert (await deployment.post(f"{API}/forget", {"user": secret("user")}))["forgotten"] == 4
    await until(lambda: _erased(deployment), 20.0)
    said = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("slipstream"))
    left = told({**await deployment.kept(), "log": said})
    assert sorted(left) == []


async def _erased(deployment) -> bool:
    status = (await deployment.control.ask("GET", "/status"))[1]["forgetting"]
    return not status["episodes"]
