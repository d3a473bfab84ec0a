"""The page of a proxy that has API keys: it asks for one, says what is wrong with it, and shows what it may see."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from tests.support.browser import CHROMIUM, browser
from tests.support.fake_engine import FakeEngine
from tests.support.page_views import ROWS, click
from tests.support.running import run_proxy

from slipstream_proxy.keys import Keys

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt install chromium)")
FIELD = "document.querySelector('input[type=password]')"


async def give(page, secret: str) -> None:
    await page.until(f"!!{FIELD}")
    await page.js(f"{FIELD}.value = {json.dumps(secret)}; {FIELD}.dispatchEvent(new Event('input', {{bubbles: true}}))")
    await asyncio.sleep(0.1)
    await click(page, "Use it")


async def forget(page) -> None:
    await click(page, "?")
    await click(page, "Forget this tab's API key")
    await page.holds("This proxy asks for an API key")


async def test_the_page_asks_for_a_key_and_shows_what_it_may_see(tmp_path):
    keys = Keys(tmp_path / "proxy" / "data" / "keys.json")
    keys.path.parent.mkdir(parents=True)
    secrets = {
        name: keys.add(name, [scope])[1]
        for name, scope in (("agent", "inference"), ("other", "inference"), ("wall", "viewer"))
    }
    engine = await FakeEngine().start()
    running = run_proxy(tmp_path / "proxy", engine.url, engine={"name": "tiny"})
    proxy = await asyncio.to_thread(running.__enter__)
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            for name in ("run-1", "run-2"):
                headers = {"authorization": f"Bearer {secrets['agent']}", "x-slipstream-episode": name}
                body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
                reply = await client.post(f"{proxy.url}/v1/chat/completions", json=body, headers=headers)
                assert reply.status_code == 200
        async with browser(tmp_path, f"{proxy.url}/#/episodes") as page:
            await page.holds("This proxy asks for an API key")
            assert await page.js(ROWS) == 0
            assert await page.accessibility() == []
            await give(page, "sk-of-somebody-else")
            await page.holds("Unknown API key")
            await give(page, secrets["wall"])
            await page.until(f"{ROWS} === 2 && !{FIELD}")
            await forget(page)
            await give(page, secrets["other"])
            await page.holds("None of the 2 episodes came with your key.")
            assert "0 made with your key" in await page.js("document.querySelector('main').innerText")
            assert await page.accessibility() == []
            await forget(page)
            await give(page, secrets["agent"])
            await page.until(f"{ROWS} === 2")
            assert not [e for e in page.errors if "Uncaught" in e]
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)
        await engine.stop()


async def test_an_operator_sees_tenants_and_goes_into_one_and_a_tenant_sees_itself_alone(tmp_path):
    keys = Keys(tmp_path / "proxy" / "data" / "keys.json")
    keys.path.parent.mkdir(parents=True)
    ops, acme = (keys.add(name or "ops", ["admin"], tenant=name)[1] for name in ("", "acme"))
    engine = await FakeEngine().start()
    running = run_proxy(tmp_path / "proxy", engine.url, engine={"name": "tiny"}, tenants={"umbrella": {}})
    proxy = await asyncio.to_thread(running.__enter__)
    tenants_link = "!!document.querySelector('nav a[href=\"#/tenants\"]')"
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            headers = {"authorization": f"Bearer {acme}", "x-slipstream-episode": "run-of-acme"}
            body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
            assert (
                await client.post(f"{proxy.url}/v1/chat/completions", json=body, headers=headers)
            ).status_code == 200
        async with browser(tmp_path, f"{proxy.url}/#/now") as page:
            await give(page, ops)
            await page.until(tenants_link)
            await page.js("location.hash = '#/tenants'")
            await page.until(f"{ROWS} === 2")
            await page.until("document.querySelectorAll('main button:not([disabled])').length === 2")
            assert await page.accessibility() == []
            await click(page, "acme")
            await page.holds("You are in the place of acme.")
            await page.until(f"!({tenants_link})")
            await page.js("location.hash = '#/episodes'")
            await page.holds("run-of-acme")
            await click(page, "Back to all")
            await page.until(f"{ROWS} === 2 && {tenants_link}")
            await page.js("location.hash = '#/episodes'")
            await page.until("!document.querySelector('main').innerText.includes('run-of-acme')")
            await forget(page)
            await give(page, acme)
            await page.js("location.hash = '#/episodes'")
            await page.holds("run-of-acme")
            assert not await page.js(tenants_link)
            assert not [e for e in page.errors if "Uncaught" in e]
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)
        await engine.stop()
