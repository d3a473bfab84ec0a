"""Two hostile tenants and an operator: nothing that one has written reaches the other, by any way in.

The proxy runs as processes of its own, in front of a fake engine.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest
from aiohttp import web
from tests.support import wait_for
from tests.support.adapters import write_adapter
from tests.support.fake_engine import LoraEngine, beside
from tests.support.running import Running, run_proxy

from slipstream.client import Client
from slipstream.contract import Headers
from slipstream_proxy.control.api.app import installed_routes
from slipstream_proxy.keys import Keys

pytestmark = pytest.mark.timeout(300)
API = "/slipstream/v1"
SECRETS = {"acme": "Zqv7Mkw3Acx", "umbrella": "Zqv7Mkw3Umx", "": "Zqv7Mkw3Opx"}
"""Tenant → what stands in all that it writes. No other word of ours has it."""
CUSTOMER = f"{Headers.TAG}customer"
EXPORTS = ("jsonl", "sft", "dpo", "parquet")


class EchoEngine(LoraEngine):
    """Replies with what it was asked, so that replies have secrets, too; and it keeps files, as some servers do."""

    def add_more(self, app: web.Application) -> None:
        super().add_more(app)
        app.router.add_get("/v1/files", self.kept)
        app.router.add_get("/v1/batches", self.kept)
        app.router.add_get("/v1/responses/{id}", self.kept)
        app.router.add_post("/v1/audio/transcriptions", self.heard)

    async def kept(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"filename": secret} for secret in SECRETS.values()]})

    async def heard(self, request: web.Request) -> web.Response:
        form = await request.post()
        self.seen.append(({"model": str(form.getall("model")[-1])}, {}))
        return web.json_response({"text": "x"})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if isinstance(body, web.Response):
            return body
        said = str(body["messages"][-1]["content"])
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        more = {"token_ids": [1, 2], "logprobs": {"content": [{"token": "a", "logprob": -0.5}] * 2}}
        usage = {"prompt_tokens": 2, "completion_tokens": 2}
        told = {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"], "usage": usage}
        return web.json_response({**told, "choices": [choice | more], "prompt_token_ids": [3, 4]})


class House:
    """The proxy, its engine, and a key of each tenant and of the operator."""

    def __init__(self, running: Running, engine: EchoEngine) -> None:
        self.running, self.engine, self.url = running, engine, running.url
        self.keys = Keys(running.data_dir / "keys.json")
        self.of = {name: self.keys.add(f"k-{secret}", ("admin",), tenant=name)[1] for name, secret in SECRETS.items()}
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def folder(self, tenant: str) -> Path:
        return self.running.data_dir / "tenants" / tenant if tenant else self.running.data_dir

    def ask(self, tenant: str, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.of[tenant]}", **more.pop("headers", {})}
        return self.http.request(method, path, headers=headers, **more)

    def call(self, tenant: str, episode: str, **headers: str) -> httpx.Response:
        secret = SECRETS[tenant]
        body = {"model": "inbox", "messages": [{"role": "user", "content": f"the word is {secret}"}]}
        sent = {Headers.EPISODE: episode, Headers.TASK: f"task-{secret}", f"{Headers.TAG}user": secret, **headers}
        return self.ask(tenant, "POST", "/v1/chat/completions", json=body, headers=sent)

    def plant(self, tenant: str) -> None:
        secret = SECRETS[tenant]
        for n in range(2):
            episode = f"run-{secret}-{n}"
            assert self.call(tenant, episode).status_code == 200
            reward = {"name": "judge", "value": float(n), "reason": f"because {secret}", "source": "agent"}
            for path, body in (
                ("rewards", reward | {"done": False}),
                ("feedback", {"text": f"say {secret}", "thumb": "up"}),
                ("done", {}),
            ):
                got = self.ask(tenant, "POST", f"{API}/episodes/{episode}/{path}", json=body)
                assert got.status_code < 300, (path, got.text)
        self.ask(tenant, "POST", f"{API}/annotations", json={"text": f"note {secret}"}).raise_for_status()
        self.ask(tenant, "POST", f"{API}/training/pause", json={"reason": secret}).raise_for_status()
        adapters = self.folder(tenant) / "adapters"
        write_adapter(adapters / "inbox@1", fill=1 + len(tenant), note=secret)
        got = self.ask(tenant, "POST", f"{API}/adapters", json={"path": "inbox@1", "meta": {"why": secret}})
        assert got.status_code < 300, got.text

    def answers(self, tenant: str, others: list[str]) -> Iterator[tuple[str, bytes]]:
        """(What was asked, all that came back) of all that a tenant's key reads. ``others``: whose ids it knows."""
        ids = [*(f"run-{SECRETS[o]}-0" for o in others), f"run-{SECRETS[tenant]}-0"]
        named = {"adapter": ["inbox@1", *(f"inbox@{o}.1" for o in others if o)], "file": ["adapter_config.json"]}
        groups = [f"task-{SECRETS[o]}" for o in others]
        named |= {"episode": ids, "group": groups, "batch": groups, "call": groups, "key": groups, "set": groups}
        named |= {"name": ["x"], "view": ["x"], "sha256": ["0" * 64]}
        for route in installed_routes():
            if route.method != "GET" or route.endless:
                continue
            names = [part.split(":")[0] for part in _parts(route.path)]
            for values in itertools.product(*(named[name] for name in names)):
                path = _filled(route.path, values)
                yield path, _all(self.ask(tenant, "GET", path))
        for format in EXPORTS:
            yield f"export {format}", _all(self.ask(tenant, "GET", f"{API}/export?format={format}"))
        for search in SECRETS.values():
            yield "search", _all(self.ask(tenant, "GET", f"{API}/episodes?text={search}&q={search}"))
        for query in (
            "select * from calls", "select * from episodes", "select * from rewards", "select * from duckdb_tables()",
            f"select * from read_text('{self.running.data_dir}/proxy.json')",
            f"select * from read_json('{self.running.data_dir}/keys.json')",
            *(f"attach '{self.folder(o)}/slipstream.duckdb' as o{n}" for n, o in enumerate(others)),
            *(f"select * from '{self.folder(o)}/slipstream.duckdb'.calls" for o in others),
            *(f"select * from read_blob('{self.folder(o)}/spool/**')" for o in others),
        ):  # fmt: skip
            yield query, _all(self.ask(tenant, "POST", f"{API}/sql", json={"query": query}))
        for path in ("/metrics", "/v1/models", "/v1/files", "/v1/batches", "/v1/responses/resp_1", "/healthz", "/"):
            yield path, _all(self.ask(tenant, "GET", path))
        lease = {"worker": "w", "names": ["judge"], "limit": 64, "seconds": 5.0, "singles": True}
        yield "judge's lease", _all(self.ask(tenant, "POST", f"{API}/groups/lease", json=lease))
        batch = {"worker": "w", "model": "inbox", "seconds": 5.0, "min_groups": 1, "max_groups": 8}
        yield "batch", _all(self.ask(tenant, "POST", f"{API}/batches/lease", json=batch))
        for o in others:
            for path in (f"../../{o}/adapters/inbox@1", f"tenants/{o}/adapters/inbox@1", f"{self.folder(o)}/adapters"):
                yield path, _all(self.ask(tenant, "POST", f"{API}/adapters", json={"path": path}))
        with contextlib.suppress(httpx.ReadTimeout):
            sent = {"authorization": f"Bearer {self.of[tenant]}", "last-event-id": "0"}
            with self.http.stream("GET", f"{API}/events/stream", headers=sent, timeout=1.5) as stream:
                for piece in stream.iter_bytes():
                    yield "events", piece


def _parts(path: str) -> list[str]:
    found, depth, start = [], 0, 0
    for at, char in enumerate(path):
        if char == "{":
            depth, start = depth + 1, start if depth else at + 1
        elif char == "}":
            depth -= 1
            if not depth:
                found.append(path[start:at])
    return found


def _filled(path: str, values: tuple[str, ...]) -> str:
    for part, value in zip(_parts(path), values, strict=True):
        path = path.replace("{" + part + "}", value, 1)
    return path


def _all(response: httpx.Response) -> bytes:
    asked = str(response.request.url).encode() + (response.request.content or b"")
    said = response.content + repr(list(response.headers.items())).encode()
    return b"".join(line for line in said.splitlines(keepends=True)) if asked else said


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    engine = EchoEngine()
    engine.models = {"inbox"}
    folder = tmp_path_factory.mktemp("w")
    Keys(folder / "data" / "keys.json").add("first", ("admin",))
    settings: dict[str, Any] = {
        "proxy": {"port": 0, "workers": 2, "tenant_tag": "customer", "metric_tags": ["user"]},
        "tenants": {"acme": {}, "umbrella": {}}, "groups": {"size": 2}, "reward": {"weights": {"judge": 1.0}},
    }  # fmt: skip
    with beside(engine), run_proxy(folder, engine.url, **settings) as running:
        house = House(running, engine)
        for name in SECRETS:
            wait_for(lambda name=name: house.ask(name, "GET", f"{API}/status").status_code == 200, 60, 0.2, name)
            house.plant(name)
        for name, secret in SECRETS.items():
            wait_for(
                lambda name=name, secret=secret: secret in house.ask(name, "GET", f"{API}/episodes").text, 60, 0.2, name
            )
        yield house


@pytest.mark.parametrize("tenant", ["acme", "umbrella"])
def test_nothing_of_anothers_can_be_read(house: House, tenant: str) -> None:
    others = [name for name in SECRETS if name != tenant]
    found, own = [], 0
    for asked, answer in house.answers(tenant, others):
        own += SECRETS[tenant].encode() in answer
        for other in others:
            at = answer.find(SECRETS[other].encode())
            while at >= 0:
                around = answer[max(0, at - 90) : at + 40]
                if SECRETS[other] not in asked and other.encode() not in asked.encode() or b"the word is" in around:
                    found.append((asked, other, around))
                at = answer.find(SECRETS[other].encode(), at + 1)
    assert not found, "\n".join(map(str, found))
    assert own > 15, "its own secret is what it reads all over"
