"""What is acknowledged to a tenant is kept, whatever process is killed, and however the tenant came."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

import httpx
import psycopg
import pytest
from tests.support import slipstream, wait_for
from tests.support.adapters import write_adapter
from tests.support.fake_engine import LoraEngine, inbox_engine  # noqa: F401 - a fixture
from tests.support.postgres import fresh_schema, postgres  # noqa: F401 - a fixture
from tests.support.running import Running, run_proxy

from slipstream.client import Client
from slipstream.contract import AdapterIn, Headers
from slipstream_proxy.keys import Keys

pytestmark = pytest.mark.timeout(300)
NAMES = ("acme", "umbrella")


def call(http: httpx.Client, key: str, episode: str) -> int:
    """The status; 0: no answer came."""
    body = {"model": "inbox", "messages": [{"role": "user", "content": "x"}]}
    with contextlib.suppress(httpx.TransportError):
        headers = {"authorization": f"Bearer {key}", Headers.EPISODE: episode}
        return http.post("/v1/chat/completions", json=body, headers=headers).status_code
    return 0


def stored(url: str, key: str) -> list[str]:
    with Client(url, key) as client:
        return [row[0] for row in client.sql("select episode from calls where outcome = 'ok'", 100_000).rows]


def _all_stored(url: str, key: str, answered: list[str]) -> bool:
    return set(answered) <= set(stored(url, key))


def _grown(answered: list[str], beyond: int) -> bool:
    return len(answered) > beyond


def processes(running: Running, module: str) -> list[int]:
    """Of the proxy's descendants those that run a module, eldest first."""
    found = []
    for line in subprocess.run(["ps", "-ww", "-eo", "pid,pgid,args"], capture_output=True, text=True, check=True).stdout.splitlines()[1:]:  # fmt: skip
        pid, group, args = line.split(None, 2)
        if module in args and _starter(int(pid), running.process.pid):
            found.append(int(pid))
    return sorted(found)


def _starter(pid: int, of: int) -> bool:
    while pid > 1:
        if pid == of:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


def test_kills_lose_nothing_of_any_tenant(engine: LoraEngine, tmp_path: Path) -> None:
    keys = Keys(tmp_path / "data" / "keys.json")
    of = {name: keys.add(name, ("admin",), tenant=name)[1] for name in NAMES}
    with run_proxy(tmp_path, engine.url, proxy={"port": 0, "workers": 2}) as running:
        for name in NAMES:
            wait_for(lambda name=name: stored(running.url, of[name]) is not None, 60, 0.2, name)  # type: ignore[misc]
        keepers = "slipstream_proxy.control.run.tenants"
        wait_for(lambda: len(processes(running, keepers)) == 3, 60, 0.2, "one that forks, and one of each tenant")
        answered: dict[str, list[str]] = {name: [] for name in NAMES}
        stop = threading.Event()

        def agent(name: str, number: int) -> None:
            http, at = httpx.Client(base_url=running.url, timeout=30, trust_env=False), 0
            while not stop.is_set():
                at += 1
                if call(http, of[name], f"{name}-{number}-{at}") == 200:
                    answered[name].append(f"{name}-{number}-{at}")
                time.sleep(0.01)

        agents = [threading.Thread(target=agent, args=(name, n)) for name in NAMES for n in range(2)]
        for one in agents:
            one.start()
        try:
            for victim in ("a tenant's control plane", "the fork parent", "a worker"):
                time.sleep(1.0)
                before = {name: len(found) for name, found in answered.items()}
                eldest, *forked = processes(running, keepers)
                workers = processes(running, "slipstream_proxy.data.worker")
                pid = {"a worker": workers[0], "the fork parent": eldest}.get(victim, forked[0] if forked else 0)
                assert pid, victim
                os.kill(pid, signal.SIGKILL)
                for name in NAMES:
                    wait_for(partial(_grown, answered[name], before[name] + 5), 30, 0.05, f"{victim}: {name}")
                wait_for(lambda: len(processes(running, keepers)) == 3, 60, 0.2, f"{victim} is back")
        finally:
            stop.set()
            for one in agents:
                one.join()
        for name in NAMES:
            wait_for(partial(_all_stored, running.url, of[name], answered[name]), 60, 0.5, "all are stored")
            found = stored(running.url, of[name])
            assert len(found) == len(set(found)) and all(episode.startswith(f"{name}-") for episode in found)


def test_a_tenant_that_comes_back_loses_nothing(engine: LoraEngine, tmp_path: Path) -> None:
    keys = Keys(tmp_path / "data" / "keys.json")
    keys.add("ops", ("admin",))
    key = keys.add("a", ("admin",), tenant="acme")[1]
    with run_proxy(tmp_path, engine.url, proxy={"port": 0, "workers": 2}) as running:
        http = httpx.Client(base_url=running.url, timeout=30, trust_env=False)
        folder = running.data_dir / "tenants" / "acme"
        wait_for(lambda: stored(running.url, key) is not None, 60, 0.2, "it runs")
        assert [call(http, key, f"before-{n}") for n in range(8)] == [200] * 8
        argv = slipstream("tenants", "remove", "acme", "--config", str(running.config))
        told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        assert "1 key would" in told and folder.exists()
        said = subprocess.run([*argv, "--yes"], capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stderr
        assert call(http, key, "gone") == 401
        time.sleep(3.0)
        assert not folder.exists(), sorted(folder.rglob("*"))
        again = keys.add("a", ("admin",), tenant="acme")[1]
        names = {f"after-{n}" for n in range(40)}
        for name in names:
            with httpx.Client(base_url=running.url, timeout=30, trust_env=False) as one:  # any worker
                assert call(one, again, name) == 200
        wait_for(lambda: set(stored(running.url, again)) == names, 60, 0.3, "all are stored, and nothing of before")
        with Client(running.url, again) as client:
            entries = client.audit().entries
        assert [entry.target for entry in entries if entry.action == "key_add"] == [keys.named("a").id]


def test_a_quota_of_two_proxies_is_exact_to_one_call(engine: LoraEngine, tmp_path: Path, postgres: str) -> None:  # noqa: F811 - the fixture
    quota = 1000
    store = {"url": fresh_schema(postgres).partition("&options")[0]}
    tenants = {"acme": {"quota": {"calls_per_day": quota}}}
    secret = Keys(tmp_path / "keys.json").add("a", ("admin",), tenant="acme")[1]
    with contextlib.ExitStack() as stack:
        proxies = []
        for n in range(2):
            data = tmp_path / f"p{n}" / "data"
            data.mkdir(parents=True)
            (data / "keys.json").write_bytes((tmp_path / "keys.json").read_bytes())
            settings = {"proxy": {"port": 0, "workers": 2}, "store": store, "tenants": tenants}
            proxies.append(stack.enter_context(run_proxy(data.parent, engine.url, **settings)))
        for one in proxies:
            wait_for(lambda one=one: stored(one.url, secret) is not None, 60, 0.2, "it runs")  # type: ignore[misc]
        statuses: list[int] = []

        def agent(number: int) -> None:
            with httpx.Client(base_url=proxies[number % 2].url, timeout=60, trust_env=False) as http:
                while True:
                    status = call(http, secret, f"q-{number}-{len(statuses)}")
                    statuses.append(status)
                    if status != 200:
                        return

        agents = [threading.Thread(target=agent, args=(n,)) for n in range(8)]
        for thread in agents:
            thread.start()
        for thread in agents:
            thread.join()
        assert (statuses.count(200), statuses.count(429)) == (quota, 8)


def test_a_removed_tenant_leaves_nothing_and_the_others_keep_all(
    engine: LoraEngine,
    tmp_path: Path,
    postgres: str,  # noqa: F811 - the fixture
) -> None:
    url = fresh_schema(postgres).partition("&options")[0]
    keys = Keys(tmp_path / "data" / "keys.json")
    of = {name: keys.add(name, ("admin",), tenant=name)[1] for name in NAMES}
    with run_proxy(tmp_path, engine.url, proxy={"port": 0, "workers": 2}, store={"url": url}) as running:
        http = httpx.Client(base_url=running.url, timeout=30, trust_env=False)
        for name in NAMES:
            wait_for(lambda name=name: stored(running.url, of[name]) is not None, 60, 0.2, name)  # type: ignore[misc]
            write_adapter(running.data_dir / "tenants" / name / "adapters" / "inbox@1", fill=len(name))
            with Client(running.url, of[name]) as client:
                client.add_adapter(AdapterIn(path="inbox@1"))
                wait_for(lambda c=client: c.status().models["inbox"] == "inbox@1", 60, 0.2, name)  # type: ignore[misc]
            assert call(http, of[name], f"open-{name}") == 200, "a run that stays open"
            wait_for(partial(_all_stored, running.url, of[name], [f"open-{name}"]), 60, 0.2, name)
        assert {"inbox@acme.1", "inbox@umbrella.1"} <= engine.adapters.keys()
        checkpoints = running.data_dir / "tenants" / "acme" / "checkpoints"
        checkpoints.mkdir(parents=True)
        argv = [*slipstream("tenants", "remove", "acme", "--config", str(running.config)), "--yes"]
        with (checkpoints / "lock").open("w") as trains:
            fcntl.flock(trains, fcntl.LOCK_EX)  # its trainer is in a step
            removing = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            wait_for(lambda: call(http, of["acme"], "gone") == 401, 30, 0.1, "its keys are revoked")
            wait_for(lambda: "inbox@acme.1" not in engine.adapters, 30, 0.1, "the engine has lost its adapter")
            time.sleep(3.0)
            assert removing.poll() is None and checkpoints.exists(), "it waits for the step's end"
        said, _ = removing.communicate(timeout=60)
        assert removing.returncode == 0, said
        assert not checkpoints.parent.exists()
        with psycopg.connect(url) as con:
            schemas = {row[0] for row in con.execute("SELECT nspname FROM pg_namespace").fetchall()}
            roles = {row[0] for row in con.execute("SELECT rolname FROM pg_roles").fetchall()}
        assert "slipstream_umbrella" in schemas and "slipstream_acme" not in schemas
        assert "slipstream_reader_slipstream_acme" not in roles
        assert "inbox@umbrella.1" in engine.adapters
        assert stored(running.url, of["umbrella"]) == ["open-umbrella"]
        assert call(http, of["umbrella"], "goes-on") == 200
