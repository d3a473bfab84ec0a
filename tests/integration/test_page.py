"""The page through a real proxy: the data plane hands its files and its live events on."""

from __future__ import annotations

import asyncio
import contextlib

import httpx
import pytest
from tests.support.browser import CHROMIUM, browser
from tests.support.fake_engine import FakeEngine
from tests.support.running import run_proxy

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt install chromium)")
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


@contextlib.asynccontextmanager
async def served(tmp_path, **overrides):
    """A proxy in front of a server that speaks vLLM's protocol."""
    engine = await FakeEngine().start()
    running = run_proxy(tmp_path / "proxy", engine.url, engine={"name": "tiny"}, **overrides)
    try:
        yield await asyncio.to_thread(running.__enter__)
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)
        await engine.stop()


async def call(client: httpx.AsyncClient, url: str, episode: str) -> None:
    reply = await client.post(url + "/v1/chat/completions", json=BODY, headers={"x-slipstream-episode": episode})
    assert reply.status_code == 200, reply.text


async def test_the_page_s_files_come_packed_and_once(tmp_path):
    async with served(tmp_path) as proxy, httpx.AsyncClient(trust_env=False) as client:
        for path in ("/", "/static/page.js", "/static/page.css"):
            plain = await client.get(proxy.url + path, headers={"accept-encoding": "identity"})
            packed = await client.get(proxy.url + path, headers={"accept-encoding": "gzip"})
            assert plain.content == packed.content and packed.headers["content-encoding"] == "gzip"
            again = await client.get(proxy.url + path, headers={"if-none-match": packed.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            assert "require-trusted-types-for" in packed.headers["content-security-policy"]


@needs_browser
async def test_a_call_of_an_agent_is_on_the_page_within_two_seconds(tmp_path):
    async with served(tmp_path) as proxy, httpx.AsyncClient(trust_env=False) as client:
        async with browser(tmp_path, proxy.url + "/#/now") as page:
            await page.holds(f"export OPENAI_BASE_URL={proxy.url}/v1")
            await asyncio.sleep(1.0)
            took = []
            for n in range(5):
                began = asyncio.get_running_loop().time()
                await call(client, proxy.url, f"run-{n}")
                await page.holds(f"run-{n}", 10.0)
                took.append(asyncio.get_running_loop().time() - began)
            assert sorted(took)[2] <= 2.0, took
            await page.go(proxy.url + "/#/episode/run-1?key=-")
            await page.holds("Hello world")
            await page.until("document.querySelectorAll('.tokens span').length === 8")
            assert page.errors == []


@needs_browser
async def test_six_pages_at_once_leave_each_other_connections(tmp_path):
    """A browser has six connections to a server, and a live page keeps one: pages out of sight must not."""
    async with served(tmp_path) as proxy, httpx.AsyncClient(trust_env=False) as client:
        await call(client, proxy.url, "first")
        async with browser(tmp_path, proxy.url + "/#/episodes") as page:
            await page.holds("first")
            for n in range(8):
                await page.go(f"{proxy.url}/#/episodes?n={n}")
                await page.holds("first", 15.0)
