"""The page in a real browser: what it shows, what its buttons do, and that a transcript cannot do anything there."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.adapters import write_adapter
from tests.support.browser import CHROMIUM, browser
from tests.support.plane import until

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt install chromium)")
EVIL = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script><b id="planted">bold</b>'
LEASE = {"worker": "w1", "model": "tiny", "min_groups": 1, "max_wait": 0}


async def train(plane) -> None:
    """A group of two that a batch was trained on, with its advantages."""
    for n in range(2):
        await plane.call(f"e{n}", task="t1", text=EVIL, done=True)
        await plane.seen(f"e{n}")
        assert (await plane.ask("POST", f"/episodes/e{n}/rewards", {"value": float(n), "reason": EVIL}))[0] == 200

    async def leased():
        reply = await plane.client.post("/slipstream/v1/batches/lease", json=LEASE, headers=plane.as_())
        return reply if reply.status == 200 else None

    reply = await until(leased)
    ack = {
        "lease": reply.headers["x-slipstream-lease"],
        "outcome": "trained",
        "adapter": "tiny@1",
        "step": 1,
        "advantages": {"e0": -1.0, "e1": 0.5},
    }
    assert (await plane.ask("POST", f"/batches/{reply.headers['x-slipstream-batch']}/ack", ack))[0] == 200


async def test_people_see_what_there_is(make_plane, tmp_path):
    plane = await make_plane(groups={"size": 2}, trainer={"min_groups": 1, "max_groups": 4}, gate={"mode": "manual"})
    await train(plane)
    for n in (1, 2):
        write_adapter(plane.config.adapters_dir / f"tiny@{n}", fill=n)
        assert (await plane.ask("POST", "/adapters?wait=60", {"path": f"tiny@{n}"}))[0] in (200, 201)
    home = str(plane.client.make_url("/"))
    async with browser(tmp_path, "about:blank") as page:
        await page.ask("Network.enable")
        await page.ask("Network.setExtraHTTPHeaders", headers=plane.as_())
        await page.ask("Page.navigate", url=home)
        assert await page.until("document.querySelectorAll('#episodes tr').length >= 2")
        text = await page.js("document.body.innerText")
        assert "tiny → tiny" in text and "tiny@2" in text and "e1" in text
        assert await page.js("document.querySelectorAll('#chart circle').length") >= 1

        await page.js(
            "[...document.querySelectorAll('#episodes tr')].find(r => r.textContent.startsWith('e1')).click()"
        )
        assert await page.until("document.querySelectorAll('#calls .tokens span').length") == 2
        shown = await page.js("[...document.querySelectorAll('#calls .tokens span')].map(s => [s.className, s.title])")
        assert [kind for kind, _ in shown] == ["up2", "up2"] and "advantage 0.5, probability 0.6" in shown[0][1]
        assert "advantage 0.5" in await page.js("document.getElementById('about').textContent")
        seen = await page.js("document.getElementById('calls').textContent")
        assert EVIL in seen, "a transcript is text"
        assert await page.js("document.getElementById('planted')") is None
        assert await page.js("window.pwned") is None

        await press(page, "tiny@2", "Promote")
        await until(lambda: live(plane, "tiny@2"))
        assert await page.until("document.getElementById('said').textContent") == "tiny@2 is live"
        await page.until("document.getElementById('live').textContent.includes('tiny@2')")
        await page.js("document.getElementById('said').textContent = ''")
        await press(page, "tiny@2", "Roll back")
        await until(lambda: live(plane, "tiny"))
        assert await page.until("document.getElementById('said').textContent") == "tiny@2 is rolled_back"
        await asyncio.sleep(0)
        assert page.errors == []


async def press(page, adapter: str, what: str) -> None:
    found = (
        f"[...document.querySelectorAll('#adapters tr')].find(r => r.textContent.startsWith({adapter!r}))"
        f"?.querySelectorAll('button')"
    )
    button = f"[...({found} ?? [])].find(b => b.textContent === {what!r})"
    await page.until(f"!!({button})")
    await page.js(f"({button}).click()")


async def live(plane, name: str) -> bool:
    return (await plane.ask("GET", "/adapters"))[1]["live"]["tiny"] == name
