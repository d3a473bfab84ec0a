"""A running proxy follows its settings file: engines at once, all else is named."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import tomli_w
from tests.support import wait_for
from tests.support.adapters import write_adapter
from tests.support.fake_engine import LoraEngine
from tests.support.running import run_settings

from slipstream.client import Client
from slipstream.config import load_config
from slipstream.contract import AdapterIn
from slipstream.tenants import tenant_config
from slipstream_proxy.process.settings_file import SettingsFile, SettingsNews, SettingsWatch, told_tenants

ONE, TWO = "http://one:8000", "http://two:8000"


@pytest.fixture
def mounted(tmp_path: Path):
    """A ConfigMap as kubelet mounts it: the file is a link through a link to a folder, which is swapped."""

    def write(**tree: object) -> Path:
        number = len(list(tmp_path.glob("..2*")))
        (folder := tmp_path / f"..2026_{number}").mkdir()
        (folder / "slipstream.toml").write_text(tomli_w.dumps({"data_dir": str(tmp_path / "data"), **tree}))
        (new := tmp_path / "..data_tmp").symlink_to(folder.name)
        new.replace(tmp_path / "..data")
        if not (path := tmp_path / "slipstream.toml").is_symlink():
            path.symlink_to("..data/slipstream.toml")
        return path

    return write


def chats(engine: LoraEngine) -> list[object]:
    """Calls of agents; what the proxy itself asks is another model's or a completion."""
    return [body for body, _ in engine.seen if "messages" in body and body["messages"][0]["content"] == "hello"]


def watching(path: Path) -> SettingsWatch:
    file = SettingsFile(path, lambda: load_config(path, env={}))
    return SettingsWatch(file, file.read().model_copy())


def test_other_engines_are_taken_over_when_a_mounted_config_map_is_swapped(mounted, tmp_path):
    watch = watching(mounted(engine={"urls": [ONE], "name": "m"}))
    assert watch.look() is None
    mounted(engine={"urls": [ONE, TWO], "name": "m", "router": "http://router"})
    told = watch.look()
    assert told is not None and (told.urls, told.router, told.waiting) == ([ONE, TWO], "http://router", [])
    assert watch.config.engine.urls == [ONE, TWO], "a child that starts later has them"
    assert watch.look() is None
    news = SettingsNews(load_config(None, env={}, base={"data_dir": str(tmp_path)}))
    assert news.look() is False
    told.write(tmp_path)
    assert (news.look(), news.look()) == (True, False)
    assert (news.config.engine.urls, news.config.engine.router) == ([ONE, TWO], "http://router")


def test_what_a_running_proxy_cannot_follow_is_named_until_it_is_as_before(mounted, caplog):
    watch = watching(mounted(engine={"urls": [ONE], "name": "m"}))
    mounted(engine={"urls": [TWO], "name": "m"}, proxy={"workers": 3}, store={"url": "postgresql://x/y"})
    told = watch.look()
    assert told is not None and (told.urls, told.waiting) == ([TWO], ["proxy.workers", "store.url"])
    assert "proxy.workers, store.url" in caplog.text
    mounted(engine={"urls": [TWO], "name": "m"})
    told = watch.look()
    assert told is not None and told.waiting == []


@pytest.mark.parametrize("urls", [["http://user:secret@two:8000"], []])
def test_engines_stay_where_others_would_need_a_password_or_none_is_left(mounted, urls):
    watch = watching(mounted(engine={"urls": [ONE], "name": "m"}))
    mounted(engine={"urls": urls, "name": "m"})
    told = watch.look()
    assert told is not None and told.urls == [ONE] and "engine.urls" in told.waiting
    assert "secret" not in str(told)


def test_tenants_are_followed_and_what_waits_is_named_to_each_alone(mounted, tmp_path):
    engine = {"urls": [ONE], "name": "m"}
    watch = watching(mounted(engine=engine, tenants={"old": {}}))
    (sock := tmp_path / "data" / "tenants" / "keyed" / "control.sock").parent.mkdir(parents=True)
    sock.touch()  # a key has made it, and it runs
    tables = {
        "keyed": {"quota": {"calls_per_day": 5, "trained_tokens_per_day": 9}, "proxy": {"redact": "my_rules:redact"}},
        "new": {"proxy": {"redact": "my_rules:redact"}, "gate": {"mode": "manual"}},
        "old": {"quota": {"concurrency": 2}, "gate": {"mode": "manual"}, "identity": {"continue_window": 9.0}},
    }
    mounted(engine=engine, tenants=tables)
    told = watch.look()
    assert told is not None and set(told.waiting) == {
        "tenants.keyed.proxy.redact",
        "tenants.keyed.quota.trained_tokens_per_day",
        "tenants.old.identity.continue_window",
    }
    told.write(tmp_path / "data")
    plain = load_config(None, env={}, base={"data_dir": str(tmp_path / "data")})
    now = told_tenants(plain)
    assert now.tenants["keyed"].quota.calls_per_day == 5 and now.tenants["old"].gate == {"mode": "manual"}
    for name, waiting in {"old": ["tenants.old.identity.continue_window"], "new": []}.items():
        news = SettingsNews(tenant_config(now, name))
        assert (news.look(), news.waiting) == (True, waiting)
    tables["old"] = {"quota": {"concurrency": 3}}
    mounted(engine=engine, tenants=tables)
    told = watch.look()
    assert told is not None and not [name for name in told.waiting if "old" in name]
    assert watch.config.tenants["old"].quota.concurrency == 3
    del tables["old"]
    mounted(engine=engine, tenants=tables)
    told = watch.look()
    assert told is not None and not [name for name in told.waiting if "old" in name]
    told.write(tmp_path / "data")
    assert set(told_tenants(now).tenants) == {"keyed", "new"}


def test_a_file_that_cannot_be_read_changes_nothing(mounted):
    path = mounted(engine={"urls": [ONE], "name": "m"})
    watch = watching(path)
    mounted(engine={"urls": [TWO], "name": "m", "max_lora": 4})
    told = watch.look()
    assert told is not None and told.urls == [ONE] and "did you mean engine.max_loras" in (told.error or "")
    path.unlink()
    told = watch.look()
    assert told is not None and told.urls == [ONE] and told.error


def test_a_name_that_the_engine_gave_at_the_start_is_no_change(mounted):
    path = mounted(engine={"urls": [ONE]})
    file = SettingsFile(path, lambda: load_config(path, env={}))
    config = file.read()
    watch = SettingsWatch(file, config.model_copy(update={"engine": config.engine.model_copy(update={"name": "m"})}))
    mounted(engine={"urls": [TWO]})
    told = watch.look()
    assert told is not None and (told.waiting, watch.config.engine.name) == ([], "m")


async def test_a_running_proxy_takes_another_engine_and_leaves_one_without_losing_a_call(tmp_path):
    """Calls go on meanwhile. The new engine gets the adapter before it gets calls of it."""
    first, second = await LoraEngine().start(), await LoraEngine().start()
    engine = {"urls": [first.url], "name": "tiny", "health_interval": 0.2}
    tree: dict[str, Any] = {"engine": engine, "gate": {"holdout": 0.0}, "proxy": {"port": 0, "workers": 2}}
    statuses, stop = [], threading.Event()

    def agents(url: str) -> None:
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as http:
            while not stop.wait(0.01):
                body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
                headers = {"x-slipstream-episode": f"run{len(statuses)}"}
                reply = http.post("/v1/chat/completions", json=body, headers=headers)
                statuses.append((reply.status_code, reply.headers.get("x-slipstream-adapter")))

    def rewrite(running, **more: object) -> None:
        tree["engine"] = {**tree["engine"], **more}
        running.config.write_text(tomli_w.dumps({"data_dir": str(running.data_dir), **tree}))
        os.kill(running.process.pid, signal.SIGHUP)

    def whole() -> None:
        with run_settings(tmp_path, tree) as running, Client(running.url) as client:
            write_adapter(running.data_dir / "adapters" / "tiny@1", 8)
            client.add_adapter(AdapterIn(path="tiny@1"))
            wait_for(lambda: client.adapters().live["tiny"] == "tiny@1", 30)
            calling = threading.Thread(target=agents, args=(running.url,))
            calling.start()
            try:
                rewrite(running, urls=[first.url, second.url])
                wait_for(lambda: chats(second), 30, said="a call reaches the new engine")
                assert "tiny@1" in second.adapters
                rewrite(running, urls=[second.url], max_loras=9)
                wait_for(lambda: [e["url"] for e in client.status().engines] == [second.url], 30)
                before = len(chats(first))
                so_far = len(statuses)
                wait_for(lambda: len(statuses) > so_far + 50, 30)
                assert len(chats(first)) <= before + 1, "one was on its way"
                line = next(f for f in client.status().funnel.lines if f.cause == "settings_waiting")
                assert "engine.max_loras" in line.text
            finally:
                stop.set()
                calling.join()

    try:
        await asyncio.to_thread(whole)
    finally:
        await first.stop()
        await second.stop()
    assert set(statuses[5:]) == {(200, "tiny@1")} and {status for status, _ in statuses} == {200}
