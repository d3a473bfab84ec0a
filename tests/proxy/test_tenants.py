"""Tenants of one proxy: real processes in front of a fake engine."""

from __future__ import annotations

import json
import stat
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support import slipstream, wait_for
from tests.support.adapters import write_adapter
from tests.support.fake_engine import LoraEngine, inbox_engine  # noqa: F401 - a fixture
from tests.support.running import Running, run_proxy

from slipstream.client import Client
from slipstream.contract import API_PREFIX, BatchLeaseIn, Headers
from slipstream.errors import ApiError
from slipstream_proxy.keys import Keys
from slipstream_proxy.process.settings_file import LOOK_INTERVAL_S

pytestmark = pytest.mark.timeout(240)


class Shared:
    """A proxy with two tenants and an operator, each with a key."""

    def __init__(self, running: Running) -> None:
        self.running, self.url = running, running.url
        self.keys = Keys(running.data_dir / "keys.json")
        self.of = {name: self.key(name) for name in ("acme", "umbrella", "")}

    def key(self, tenant: str, *scopes: str) -> str:
        return self.keys.add(f"{tenant or 'ops'}-key", scopes or ("admin",), tenant=tenant)[1]

    def client(self, key: str, **more: Any) -> Client:
        return Client(self.url, self.of[key], **more)

    def call(self, key: str, text: str, episode: str, model: str = "inbox", **headers: str) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": text}]}
        sent = {"authorization": f"Bearer {key}", Headers.EPISODE: episode, **headers}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, headers=sent, timeout=60, trust_env=False)

    def episodes(self, key: str, **more: Any) -> set[str]:
        with self.client(key, **more) as client:
            return {e.id for e in client.all_episodes()}

    def has_alone(self, key: str, episode: str) -> bool:
        return self.episodes(key) == {episode}


@pytest.fixture(scope="module")
def shared(engine: LoraEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("t")
    (folder / "data").mkdir()
    (folder / "data").chmod(0o755)  # whatever the tests before left as umask
    Keys(folder / "data" / "keys.json").add("first", ("admin",))
    with run_proxy(
        folder, engine.url, proxy={"port": 0, "workers": 2, "tenant_tag": "customer"}, tenants={"acme": {}}
    ) as running:
        yield Shared(running)


def test_each_tenant_sees_its_own_alone(shared: Shared) -> None:
    for name in ("acme", "umbrella", ""):
        assert shared.call(shared.of[name], f"secret of {name}", f"run-{name}x").status_code == 200
    for name in ("acme", "umbrella", ""):
        wait_for(partial(shared.has_alone, name, f"run-{name}x"), 60, 0.2, f"{name} has its own run")


def test_an_operator_acts_in_a_tenants_place_and_nobody_else(shared: Shared) -> None:
    shared.call(shared.of["acme"], "hello", "run-acme-2")
    wait_for(lambda: "run-acme-2" in shared.episodes("", tenant="acme"), 60, 0.2, "the operator sees it")
    with shared.client("umbrella", tenant="acme") as client, pytest.raises(ApiError) as e:
        client.status()
    assert (e.value.status, e.value.field) == (403, "header.x-slipstream-tenant")
    assert "umbrella" in str(e.value.fix)
    plain = shared.key("", "inference", "reward", "viewer")
    with Client(shared.url, plain, tenant="acme") as client, pytest.raises(ApiError) as e:
        client.status()
    assert e.value.status == 403
    with shared.client("", tenant="nobody") as client, pytest.raises(ApiError) as e:
        client.status()
    assert e.value.status == 404 and "keys add NAME --tenant nobody" in str(e.value.fix)
    assert shared.call(shared.of["umbrella"], "x", "y", **{Headers.TENANT: "acme"}).status_code == 403


def test_a_sidecar_works_in_a_tenants_place_and_is_no_admin_there(shared: Shared) -> None:
    sidecar = shared.key("", "judge", "trainer", "reward")
    with Client(shared.url, sidecar, tenant="acme") as client:
        wanted = BatchLeaseIn(worker="t", model="inbox", learner=None, seconds=60.0)
        assert client.lease_batch(wanted) is None
        with pytest.raises(ApiError) as e:
            client.audit()
    assert e.value.status == 403


def test_a_tag_names_the_tenant_and_fails_no_call(shared: Shared) -> None:
    key = shared.key("", "inference")
    tag = f"{Headers.TAG}customer"
    assert shared.call(key, "x", "tagged", **{tag: "acme"}).status_code == 200
    assert (
        shared.call(key, "x", "untagged", **{tag: "nobody/..\u00e9".encode("ascii", "ignore").decode()}).status_code
        == 200
    )
    wait_for(lambda: "tagged" in shared.episodes("acme"), 60, 0.2, "it is acme's")
    wait_for(lambda: "untagged" in shared.episodes(""), 60, 0.2, "it is nobody's")
    # a key of a tenant stays there, whatever its tag says
    assert shared.call(shared.of["umbrella"], "x", "stays", **{tag: "acme"}).status_code == 200
    wait_for(lambda: "stays" in shared.episodes("umbrella"), 60, 0.2, "it is umbrella's")

    def counted() -> bool:
        metrics = httpx.get(f"{shared.url}/metrics", trust_env=False).text
        assert "acme" not in metrics
        return "slipstream_unknown_tenants_total 1" in metrics

    wait_for(counted, 15, 0.3, "the other worker has saved its count")

    def said() -> list[tuple[int, str | None]]:
        with shared.client("") as client:
            return [(line.count, line.fix) for line in client.status().funnel.lines if line.cause == "unknown_tenant"]

    wait_for(lambda: said()[0][0] == 1 and "[tenants." in str(said()[0][1]), 30, 0.5, "status says it")


def test_a_tenant_comes_without_a_restart(shared: Shared) -> None:
    key = shared.key("late")
    assert shared.call(key, "x", "late-run").status_code == 200, "its first call is served at once"
    shared.of["late"] = key
    wait_for(lambda: shared.episodes("late") == {"late-run"}, 30, 0.2, "its control plane runs")
    text = shared.running.config.read_text()
    shared.running.config.write_text(text + "\n[tenants.later.quota]\nadapters = 2\n")
    wait_for((shared.running.data_dir / "tenants" / "later" / "control.sock").exists, 15, 0.1, "it starts")
    assert shared.episodes("", tenant="later") == set()


def control_starts(shared: Shared, tenant: str) -> int:
    return shared.running.log.read_text().count(f"control plane on {shared.running.data_dir}/tenants/{tenant}/")


def test_a_tenant_that_runs_follows_its_table(shared: Shared) -> None:
    key = shared.of["keyed"] = shared.key("keyed")
    assert shared.call(key, "x", "before").status_code == 200, "a plane without a table"
    wait_for(lambda: shared.episodes("keyed") == {"before"}, 30, 0.2, "its control plane runs")
    before = shared.running.config.read_text()
    starts = control_starts(shared, "keyed")
    table = '\n[tenants.keyed]\nquota = { calls_per_day = 2, concurrency = 1, output_tokens_per_day = 1000 }\ngate = { mode = "manual" }\nidentity = { traceparent = true }\n'
    shared.running.config.write_text(before + table)
    wait_for(lambda: control_starts(shared, "keyed") > starts, 30, 0.2, "its control plane starts anew")
    wait_for(lambda: shared.episodes("keyed") == {"before"}, 30, 0.2, "with its store")
    time.sleep(2 * LOOK_INTERVAL_S)  # both workers have looked
    statuses = [shared.call(key, "x", f"after-{n}").status_code for n in range(6)]
    assert statuses.count(200) == 2 and statuses.count(429) == 4, statuses
    assert shared.call(shared.of["acme"], "x", "others").status_code == 200
    with shared.client("keyed") as client:
        line = next(f for f in client.status().funnel.lines if f.cause == "settings_waiting")
    assert "tenants.keyed.identity.traceparent" in line.text and "gate" not in line.text
    shared.running.config.write_text(before + "\n[tenants.keyed.quota]\ncalls_per_day = 3\n")
    wait_for(lambda: shared.call(key, "x", "more").status_code == 200, 15, 0.2, "the quota is larger")
    wait_for(lambda: shared.call(key, "x", "more").status_code == 429, 15, 0.1, "it is used")
    shared.running.config.write_text(before)
    wait_for(lambda: shared.call(key, "x", "free").status_code == 200, 15, 0.2, "there is no quota any more")


def test_the_operator_sees_that_each_runs_and_what_it_uses(shared: Shared) -> None:
    shared.call(shared.of["umbrella"], "x", "counted")

    def shown() -> bool:
        with shared.client("") as client:
            found = {one.name: one for one in client.tenants().tenants}
        assert {"acme", "umbrella"} <= found.keys()
        return all(found[name].running and found[name].calls > 0 for name in ("acme", "umbrella"))

    wait_for(shown, 30, 0.3, "both run, with their calls")
    with shared.client("umbrella") as client, pytest.raises(ApiError):
        client.tenants()


def test_no_engine_is_asked_for_a_reply_that_it_keeps_for_all(shared: Shared, engine: LoraEngine) -> None:
    sent, seen = {"authorization": f"Bearer {shared.of['acme']}"}, len(engine.seen)
    for field in ({"previous_response_id": "resp_1"}, {"background": True}):
        body = {"model": "inbox", "input": "kept", **field}
        reply = httpx.post(f"{shared.url}/v1/responses", json=body, headers=sent, trust_env=False)
        assert reply.status_code == 400 and "all tenants" in reply.text and next(iter(field)) in reply.text
    assert not any("kept" in json.dumps(body) for body, _ in engine.seen[seen:])


def test_an_engine_of_another_user_finds_its_way_to_adapters(shared: Shared) -> None:
    adapters = shared.running.data_dir / "tenants" / "acme" / "adapters"
    for folder in (adapters, *adapters.parents[:3]):
        mode = stat.S_IMODE(folder.stat().st_mode)
        assert mode & 0o111 == 0o111 and (folder == adapters or not mode & 0o066), f"{folder}: {mode:o}"


def test_a_tenant_that_is_removed_leaves_no_adapter_in_the_engine(shared: Shared, engine: LoraEngine) -> None:
    key = shared.of["leaver"] = shared.key("leaver")
    shared.call(key, "x", "stays-a-while")
    own = shared.running.data_dir / "tenants" / "leaver"
    wait_for((own / "control.sock").exists, 30, 0.1, "its control plane runs")
    write_adapter(own / "adapters" / "inbox@1", fill=7)
    sent = {"authorization": f"Bearer {key}"}
    made = httpx.post(f"{shared.url}{API_PREFIX}/adapters", json={"path": "inbox@1"}, headers=sent, trust_env=False)
    assert made.status_code == 201, made.text
    wait_for(lambda: "inbox@leaver.1" in engine.adapters, 60, 0.2, "the engine has it")
    argv = slipstream("tenants", "remove", "leaver", "--config", str(shared.running.config), "--yes")
    subprocess.run(argv, check=True, capture_output=True)
    assert "inbox@leaver.1" not in engine.adapters and not own.exists()


def test_no_client_names_anothers_adapter(shared: Shared, engine: LoraEngine) -> None:
    engine.adapters |= {"inbox@3": "/x", "inbox@acme.3": "/y", "inbox@umbrella.3": "/z"}
    seen = len(engine.seen)
    asked = {"": ["inbox@acme.3"], "acme": ["inbox@3", "inbox@umbrella.3", "inbox@acme.3"]}
    for name, models in asked.items():
        for model in models:
            shared.call(shared.of[name], "x", "thief", model=model)
    reached = {body["model"] for body, _ in engine.seen[seen:]}
    assert reached <= {"inbox@acme.3"}, "acme's own alone"
    raw = b'{"x":' + b"[" * 3000 + b"]" * 3000 + b',"model":"inbox@umbrella.3","messages":[]}'
    for path in ("/v1/chat/completions", "/v1/embeddings"):
        for name in ("", "acme"):
            sent = {"authorization": f"Bearer {shared.of[name]}", "content-type": "application/json"}
            got = httpx.post(shared.url + path, content=raw, headers=sent, timeout=60, trust_env=False)
            assert got.status_code == 400, (path, name, got.text)
    assert httpx.get(f"{shared.url}/v1/models/inbox@acme.3", headers=sent, trust_env=False).status_code == 404
    listed = httpx.get(f"{shared.url}/v1/models", headers=sent, trust_env=False).json()
    assert [m["id"] for m in listed["data"]] == ["inbox"]
    engine.adapters.clear()


def test_prompts_are_cached_apart(shared: Shared, engine: LoraEngine) -> None:
    for name in ("acme", "umbrella", ""):
        shared.call(shared.of[name], "salted", f"salted-{name}")
    # the proxy asks an engine questions of its own meanwhile
    calls = [body for body, _ in list(engine.seen) if body.get("messages", [{}])[0].get("content") == "salted"]
    assert [body.get("cache_salt") for body in calls] == ["acme.", "umbrella.", None]
    assert {body["model"] for body in calls} == {"inbox"}


def test_each_sees_how_its_own_calls_met_their_adapters_and_the_operator_all(
    shared: Shared, engine: LoraEngine
) -> None:
    engine.plugin = True  # from its next start on
    counted = {"": (9, 1), "acme": (40, 3), "umbrella": (7, 7)}
    for name, (calls, loads) in counted.items():
        engine.use[name] = {"calls": calls, "loads": loads, "waits": loads, "wait_seconds": 2.0 * loads}
    engine.up = False
    for name in counted:
        with shared.client(name) as own:
            wait_for(lambda own=own: not own.status().engines[0]["ok"], 30, 0.2, "it is noticed")  # type: ignore[misc]
    engine.up = True
    with shared.client("") as client:
        for name, expected in counted.items():

            def has(name: str = name, expected: tuple[int, int] = expected) -> bool:
                with shared.client(name) as own:
                    use = own.status().adapter_use
                    return (use.calls, use.loads) == expected and use.hits == expected[0] - expected[1]

            wait_for(has, 30, 0.2, f"{name} sees its own")
        assert not [t.reason for t in client.tenants().tenants if not t.running]
        listed = {t.name: (t.adapter_use.calls, t.adapter_use.loads) for t in client.tenants().tenants}
    assert {name: listed[name] for name in ("acme", "umbrella")} == {n: c for n, c in counted.items() if n}
    with shared.client("acme") as client:
        line = next(line for line in client.status().funnel.lines if line.cause == "slot_waits")
    assert (line.count, line.severity) == (3, "slows") and "engine.max_loras" in str(line.fix)
    sent = {"authorization": f"Bearer {shared.of['']}"}
    text = httpx.get(f"{shared.url}/metrics", headers=sent, timeout=30, trust_env=False).text
    assert (
        'slipstream_adapter_loads_total{tenant="umbrella"} 7.0' in text and "slipstream_adapter_loads_total 1.0" in text
    )


def spooled(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_what_is_on_disk_is_apart(shared: Shared) -> None:
    shared.call(shared.of["acme"], "PLANTED-ACME", "planted")
    shared.call(shared.of["umbrella"], "PLANTED-UMBRELLA", "planted")
    wait_for(lambda: "planted" in shared.episodes("acme") & shared.episodes("umbrella"), 60, 0.2, "both are stored")
    tenants = shared.running.data_dir / "tenants"
    assert b"PLANTED-ACME" in spooled(tenants / "acme") and b"PLANTED-UMBRELLA" in spooled(tenants / "umbrella")
    assert b"PLANTED-UMBRELLA" not in spooled(tenants / "acme") and b"PLANTED-ACME" not in spooled(tenants / "umbrella")
    with shared.client("acme") as client:
        assert b"PLANTED-UMBRELLA" not in json.dumps(client.sql("select * from calls").model_dump(mode="json")).encode()
