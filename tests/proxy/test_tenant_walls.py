"""Two hostile tenants and an operator: nothing that one has written reaches the other, by any way in.

The proxy runs as processes of its own, in front of a fake engine.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest
from aiohttp import web
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
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
SAID = (b"the word is", b"because", b"say ", b"note ", b"task-text")
CUSTOMER = f"{Headers.TAG}customer"
EXPORTS = ("jsonl", "sft", "dpo", "parquet")


class EchoEngine(LoraEngine):
    """Replies with what it was asked, so that replies have secrets, too; and it keeps files, as some servers do."""

    reached = 0
    """Requests for what it keeps of all."""

    def add_more(self, app: web.Application) -> None:
        super().add_more(app)
        app.router.add_get("/v1/files", self.kept)
        app.router.add_get("/v1/batches", self.kept)
        app.router.add_post("/v1/responses", self.kept)
        for path in ("responses/{id}", "conversations/{id}", "chat/completions/{id}", "vector_stores", "uploads/{id}"):
            app.router.add_get(f"/v1/{path}", self.kept)
        app.router.add_post("/v1/audio/transcriptions", self.heard)

    async def kept(self, request: web.Request) -> web.Response:
        self.reached += 1
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

    def lists(self, tenant: str, secret: str) -> bool:
        """Whether the tenant's runs show it."""
        return secret in self.ask(tenant, "GET", f"{API}/episodes").text

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
        for kind in EXPORTS:
            yield f"export {kind}", _all(self.ask(tenant, "GET", f"{API}/export?format={kind}"))
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
    return response.content + repr(list(response.headers.items())).encode()


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
            wait_for(lambda name=name: house.ask(name, "GET", f"{API}/status").status_code == 200, 60, 0.2, name)  # type: ignore[misc]
            house.plant(name)
        for name, secret in SECRETS.items():
            wait_for(partial(house.lists, name, secret), 60, 0.2, name)
        yield house


@pytest.mark.parametrize("tenant", ["acme", "umbrella"])
def test_nothing_of_anothers_can_be_read(house: House, tenant: str) -> None:
    others = [name for name in SECRETS if name != tenant]
    found, own = [], 0
    for asked, answer in house.answers(tenant, others):
        own += SECRETS[tenant].encode() in answer
        for other in others:
            if asked == "/metrics" and not other:
                continue  # whoever asks without a key sees those
            at = answer.find(SECRETS[other].encode())
            while at >= 0:
                around = answer[max(0, at - 90) : at + 40]
                if SECRETS[other] not in asked or any(word in around for word in SAID):  # else it is what was asked
                    found.append((asked, other, around))
                at = answer.find(SECRETS[other].encode(), at + 1)
    assert not found, "\n".join(map(str, found))
    assert own > 15, "its own secret is what it reads all over"


def test_no_way_in_leads_to_another_tenant(house: House) -> None:
    """Forms of the key x headers x tags x paths: the run is the key's tenant's, or the call is refused."""
    number, made = itertools.count(), {name: set[str]() for name in SECRETS}
    for name, other in (("acme", "umbrella"), ("umbrella", "acme")):
        key = house.of[name]
        forms = ({"authorization": f"Bearer {key}"}, {"x-api-key": key}, {"api-key": key})
        says: tuple[dict[str, str], ...] = (
            {}, {CUSTOMER: other}, {CUSTOMER: ""}, {Headers.TENANT: name}, {Headers.TENANT: other}, {Headers.TENANT: ""},
            {Headers.TENANT: f"{name},{other}"}, {"x-api-key": house.of[other][:-1] + "!"},
        )  # fmt: skip
        for form, said, path in itertools.product(forms, says, ("", "/e/{}", "suffix")):
            if "x-api-key" in said and "authorization" not in form:
                continue
            episode = f"way-{name}-{next(number)}"
            body = {"model": "inbox", "messages": [{"role": "user", "content": SECRETS[name]}]}
            base = (path.format(episode) if "/" in path else "") + "/v1/chat/completions"
            sent = {**said, **form}
            if path == "suffix":
                sent = {field: f"{value}:{episode}" if value.endswith(key) else value for field, value in sent.items()}
            elif not path:
                sent[Headers.EPISODE] = episode
            got = house.http.post(base, json=body, headers=sent)
            refused = said.get(Headers.TENANT) not in (None, name)
            assert got.status_code == (403 if refused else 200), (form.keys(), said, path, got.text)
            if not refused:
                made[name].add(episode)
                done = house.http.post(f"{API}/episodes/{episode}/done", json={}, headers={**said, **form})
                assert done.status_code < 300, done.text
    for name in SECRETS:
        with Client(house.url, house.of[name]) as client:

            def ours(client: Client = client) -> set[str]:
                return {e.id for e in client.all_episodes() if e.id.startswith("way-")}

            wait_for(lambda name=name, ours=ours: ours() == made[name], 60, 0.3, f"{name} has its own alone")  # type: ignore[misc]
    for name in ("acme", "umbrella"):
        with Client(house.url, house.of[""], tenant=name) as client:
            assert made[name] <= {e.id for e in client.all_episodes()}, "the operator sees both"


def test_a_tag_opens_nothing_to_read(house: House) -> None:
    """It says whose a run is. A key of no tenant that may look sees what is no tenant's."""
    viewer = house.keys.add("looks", ("viewer", "inference", "reward"))[1]
    sent = {"authorization": f"Bearer {viewer}", CUSTOMER: "acme"}
    for path in ("/episodes", "/export?format=jsonl", "/adapters", "/status"):
        assert SECRETS["acme"] not in house.http.get(API + path, headers=sent).text, path
    body = {"model": "inbox", "messages": [{"role": "user", "content": "x"}]}
    call = house.http.post("/v1/chat/completions", json=body, headers={**sent, Headers.EPISODE: "by-tag"})
    assert call.status_code == 200, call.text
    reward = {"value": 1.0}
    assert house.http.post(f"{API}/episodes/by-tag/rewards", json=reward, headers=sent).status_code < 300

    def rewarded() -> bool:
        return "by-tag" in house.ask("acme", "GET", f"{API}/episodes").text

    wait_for(rewarded, 60, 0.2, "the call and its reward are acme's")


def test_no_body_reaches_anothers_adapter_or_cache(house: House) -> None:
    house.engine.adapters["inbox@umbrella.9"] = "/x"
    seen = len(house.engine.seen)
    form = '--b\r\ncontent-disposition: form-data; name="model"{}\r\n\r\n{}\r\n'
    for tenant in ("acme", ""):
        for fields, kind in (
            ((("", "inbox"), ("", "inbox@umbrella.9")), ""),
            ((("; x=y", "inbox@umbrella.9"),), ""),
            ((("", "inbox"),), "; charset=utf-7"),
        ):
            body = "".join(form.format(*field) for field in fields) + "--b--\r\n"
            sent = {"content-type": f"multipart/form-data; boundary=b{kind}"}
            got = house.ask(tenant, "POST", "/v1/audio/transcriptions", content=body.encode(), headers=sent)
            assert got.status_code == 400, (tenant, fields, kind, got.text)
        asked = {"model": "inbox", "messages": [{"role": "user", "content": "x"}], "cache_salt": "umbrella."}
        assert house.ask(tenant, "POST", "/v1/chat/completions", json=asked).status_code == 200
        asked = {"model": "inbox", "input": "x", "cache_salt": "umbrella."}
        assert house.ask(tenant, "POST", "/v1/embeddings", json=asked).status_code == 200
        model = "/v1beta/models/inbox@umbrella.9:generateContent"
        assert house.ask(tenant, "POST", model, json={"contents": [{"parts": [{"text": "x"}]}]}).status_code == 404
    bodies = [body for body, _ in house.engine.seen[seen:] if "prompt" not in body]  # no warming up
    assert "inbox@umbrella.9" not in {body["model"] for body in bodies}
    salts = [body["cache_salt"] for body in bodies if "cache_salt" in body]
    assert salts == ["acme.umbrella."] * 2 + [".umbrella."] * 2
    del house.engine.adapters["inbox@umbrella.9"]


def test_what_an_engine_keeps_of_one_is_not_known_to_another(house: House) -> None:
    """Neither a stored reply nor a conversation: not by its own id, by another's, nor by one that nobody has."""
    reached = house.engine.reached
    for tenant in SECRETS:
        for field, value in itertools.product(("previous_response_id", "conversation"), ("resp_1", {"id": "conv_1"})):
            for path, asked in (
                ("/v1/responses", {"input": "x"}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
            ):
                got = house.ask(tenant, "POST", path, json={"model": "inbox", field: value, **asked})
                assert (got.status_code, got.json()["error"]["param"]) == (400, field), (tenant, path, got.text)
        for kept in ("conversations/c", "chat/completions/c", "vector_stores", "uploads/u", "responses/resp_1"):
            assert house.ask(tenant, "GET", f"/v1/{kept}").status_code == 404
        assert house.ask(tenant, "POST", "/v1/responses", json={"model": "inbox", "input": "x", "previous_response_id": None}).status_code == 200  # fmt: skip
    assert house.engine.reached == reached


def test_files_and_what_is_counted_are_apart(house: House) -> None:
    for name in ("acme", "umbrella"):
        held = b"".join(path.read_bytes() for path in house.folder(name).rglob("*") if path.is_file())
        assert SECRETS[name].encode() in held
        for other in SECRETS.keys() - {name}:
            assert SECRETS[other].encode() not in held, (name, other)
    log = house.running.log.read_text()
    assert not [secret for secret in SECRETS.values() if secret in log]


def test_a_backup_has_a_whole_store_of_each_tenant(house: House, tmp_path: Path) -> None:
    for tenant, secret in SECRETS.items():
        tar = house.ask(tenant, "GET", f"{API}/backup").raise_for_status().content
        with tarfile.open(fileobj=io.BytesIO(tar)) as file:
            names = file.getnames()
            file.extractall(tmp_path / secret, filter="data")
        assert len(names) == len(set(names))
        assert not [name for name in names if name.endswith(".sock") or "metrics/" in name], names
        inside = {name.split("/")[1] for name in names if name.startswith("tenants/")}
        assert inside == (set() if tenant else {"acme", "umbrella"})
        for other in [tenant, *inside]:
            folder = tmp_path / secret / (f"tenants/{other}" if other != tenant else "")
            with duckdb.connect(str(folder / "slipstream.duckdb"), read_only=True) as store:
                (found,) = zip(*store.execute("SELECT DISTINCT id FROM t_episodes").fetchall(), strict=True)
            assert {f"run-{SECRETS[other]}-{n}" for n in range(2)} <= set(found)
            assert (folder / "adapters" / "inbox@1" / "adapter_config.json").exists()
        if tenant:
            assert not [other for other in SECRETS.values() if other != secret and other.encode() in tar]


def test_metrics_name_tenants_to_the_operator_alone(house: House) -> None:
    said = {name: house.ask(name, "GET", "/metrics").text for name in SECRETS}
    keyless = house.http.get("/metrics").text
    for text in (said["acme"], said["umbrella"], keyless):
        assert "acme" not in text and "umbrella" not in text
    families: list[Metric] = list(text_string_to_metric_families(said[""]))
    assert len({family.name for family in families}) == len(families), "each family stands there once"
    samples = [(s.name, s.labels.get("tenant"), s.value) for family in families for s in family.samples]
    for name in SECRETS:
        calls = sum(v for metric, t, v in samples if metric == "slipstream_calls_total" and t == (name or None))
        assert calls >= 2, name
