"""A restored backup of a proxy with tenants, as a proxy that runs: walls, forgettings and quotas still hold."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support import wait_for
from tests.support.fake_engine import LoraEngine, beside
from tests.support.running import run_proxy

from slipstream.contract import Headers
from slipstream_proxy.keys import Keys

API = "/slipstream/v1"
DAILY_CALLS = 4
SETTINGS: dict[str, Any] = {
    "proxy": {"port": 0},
    "tenants": {"acme": {"quota": {"calls_per_day": DAILY_CALLS}}, "umbrella": {}},
}


class Proxies:
    """Two tenants' and an operator's view of a proxy in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.engine = LoraEngine()
        self.engine.models = {"inbox"}
        keys = Keys(folder / "data" / "keys.json")
        self.keys = {name: keys.add(f"k-{name}", ("admin",), tenant=name)[1] for name in ("acme", "umbrella", "")}

    def ask(self, url: str, tenant: str, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.keys[tenant]}", **more.pop("headers", {})}
        return httpx.request(method, url + path, headers=headers, timeout=60, trust_env=False, **more)

    def call(self, url: str, tenant: str, episode: str) -> int:
        body = {"model": "inbox", "messages": [{"role": "user", "content": f"the word of {tenant}"}]}
        sent = {Headers.EPISODE: episode}
        return self.ask(url, tenant, "POST", "/v1/chat/completions", json=body, headers=sent).status_code

    def runs(self, url: str, tenant: str) -> set[str]:
        read = self.ask(url, tenant, "GET", f"{API}/episodes")
        return {episode["id"] for episode in read.json()["episodes"]} if read.status_code == 200 else set()

    def answer(self, url: str) -> None:
        for name in self.keys:
            wait_for(lambda name=name: self.ask(url, name, "GET", f"{API}/status").status_code == 200, 60, 0.2, name)  # type: ignore[misc]  # fmt: skip


def unpack(archive: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as file:
        file.extractall(folder, filter="data")


@pytest.mark.timeout(300)
def test_a_restored_backup_keeps_walls_forgettings_and_quotas(tmp_path: Path) -> None:
    world = Proxies(tmp_path / "first")
    ask, call, runs = world.ask, world.call, world.runs
    with beside(world.engine):
        with run_proxy(tmp_path / "first", world.engine.url, **SETTINGS) as running:
            world.answer(running.url)
            made = [call(running.url, "acme", f"acme-{n}") for n in range(DAILY_CALLS + 1)]
            assert made == [200] * DAILY_CALLS + [429]
            assert call(running.url, "umbrella", "umbrella-0") == 200
            wait_for(lambda: len(runs(running.url, "acme")) == DAILY_CALLS, 60, 0.2)
            wait_for(lambda: runs(running.url, "umbrella") == {"umbrella-0"}, 60, 0.2)
            assert ask(running.url, "acme", "DELETE", f"{API}/episodes/acme-0").status_code == 200
            tar = ask(running.url, "", "GET", f"{API}/backup").raise_for_status().content
        unpack(tar, tmp_path / "second" / "data")
        with run_proxy(tmp_path / "second", world.engine.url, **SETTINGS) as restored:
            left = {f"acme-{n}" for n in range(1, DAILY_CALLS)}
            wait_for(lambda: runs(restored.url, "acme") == left, 60, 0.2, "acme's runs, without the forgotten one")
            wait_for(lambda: runs(restored.url, "umbrella") == {"umbrella-0"}, 60, 0.2, "umbrella's runs")
            assert ask(restored.url, "acme", "GET", f"{API}/episodes/acme-0").status_code == 404
            for other, name in (("umbrella", "acme-1"), ("acme", "umbrella-0")):
                assert ask(restored.url, other, "GET", f"{API}/episodes/{name}").status_code == 404
                assert name.encode() not in ask(restored.url, other, "GET", f"{API}/export?format=jsonl").content
            assert call(restored.url, "acme", "acme-9") == 429, "the day's calls are used up"
            assert call(restored.url, "umbrella", "umbrella-1") == 200
            rewarded = ask(restored.url, "acme", "POST", f"{API}/episodes/acme-0/rewards", json={"value": 1.0})
            assert rewarded.status_code == 404, "what is forgotten stays so"


@pytest.mark.timeout(300)
def test_one_tenant_goes_back_and_the_others_go_on(tmp_path: Path) -> None:
    world = Proxies(tmp_path)
    own = tmp_path / "data" / "tenants" / "acme"
    with beside(world.engine):
        with run_proxy(tmp_path, world.engine.url, **SETTINGS) as running:
            url = running.url
            world.answer(url)
            for name, episode in (("acme", "acme-0"), ("acme", "acme-1"), ("umbrella", "umbrella-0")):
                assert world.call(url, name, episode) == 200
            wait_for(lambda: world.runs(url, "acme") == {"acme-0", "acme-1"}, 60, 0.2)
            wait_for(lambda: world.runs(url, "umbrella") == {"umbrella-0"}, 60, 0.2)
            archive = world.ask(url, "acme", "GET", f"{API}/backup").raise_for_status().content
            assert world.ask(url, "acme", "DELETE", f"{API}/episodes/acme-0").status_code == 200
            assert world.call(url, "umbrella", "umbrella-1") == 200
            wait_for(lambda: len(world.runs(url, "umbrella")) == 2, 60, 0.2)
        shutil.rmtree(own)
        unpack(archive, own)
        strange = own.with_name("umbrella")
        shutil.move(strange, tmp_path / "umbrella")
        unpack(archive, strange)
        with run_proxy(tmp_path, world.engine.url, **SETTINGS) as again:
            wait_for(lambda: world.runs(again.url, "acme") == {"acme-0", "acme-1"}, 60, 0.2)
            wait_for(lambda: world.ask(again.url, "", "GET", f"{API}/status").status_code == 200, 60, 0.2)
            listed = world.ask(again.url, "", "GET", f"{API}/tenants").raise_for_status().json()["tenants"]
            (why,) = (t["reason"] for t in listed if t["name"] == "umbrella")
            assert "has the runs of the tenant acme" in why
            assert world.ask(again.url, "umbrella", "GET", f"{API}/episodes").status_code == 503
        shutil.rmtree(strange)
        shutil.move(tmp_path / "umbrella", strange)
        with run_proxy(tmp_path, world.engine.url, **SETTINGS) as again:
            wait_for(lambda: world.runs(again.url, "acme") == {"acme-0", "acme-1"}, 60, 0.2, "as it was")
            wait_for(lambda: world.runs(again.url, "umbrella") == {"umbrella-0", "umbrella-1"}, 60, 0.2, "goes on")
            assert world.call(again.url, "acme", "acme-2") == 200
