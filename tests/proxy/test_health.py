"""What probes and scrapes are answered."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web

from slipstream_proxy.data.routes import health
from slipstream_proxy.data.routes.health import _merged


async def get(url: str, **more) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url, **more) as reply:
        return reply.status, reply.headers.get("content-type", ""), await reply.text()


async def test_ready_says_why_not(start, fake):
    proxy = await start()
    live = proxy.plane.live
    assert (await get(proxy.url + "/healthz"))[0] == 200
    status, _, text = await get(proxy.url + "/readyz")
    assert status == 503 and "not known" in text
    live.known = True
    assert (await get(proxy.url + "/readyz"))[::2] == (
        200,
        '{"status": "ready", "control_plane": "away: calls are served and recorded meanwhile"}',
    )
    live.changed = lambda: None
    live.mark_down(fake.url)
    status, _, text = await get(proxy.url + "/readyz")
    assert status == 503 and "no engine" in text
    live.mark_up(fake.url)
    assert (await get(proxy.url + "/readyz"))[0] == 200
    proxy.plane.state.draining = True
    status, _, text = await get(proxy.url + "/readyz")
    assert status == 503 and "draining" in text and (await get(proxy.url + "/healthz"))[0] == 200
    proxy.plane.state.draining = False


async def test_metrics_without_a_control_plane(start, fake):
    proxy = await start()
    status, kind, text = await get(proxy.url + "/metrics")
    assert status == 200 and kind.startswith("text/plain; version=0.0.4")
    assert "# TYPE slipstream_calls_total counter" in text
    assert (await get(proxy.url + "/metrics", headers={"Host": "evil.example"}))[0] == 403


async def test_a_slow_control_plane_keeps_its_series_and_one_that_is_gone_does_not(start, fake, monkeypatch):
    monkeypatch.setattr(health, "SCRAPE_PATIENCE", 0.3)
    proxy = await start()
    path = proxy.plane.link.socket
    path.parent.mkdir(parents=True, exist_ok=True)
    slow = []

    async def answer(_):
        if slow:
            await asyncio.sleep(5)
        return web.Response(text="# TYPE slipstream_groups gauge\nslipstream_groups 3\n")

    app = web.Application()
    app.router.add_get("/internal/metrics", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    assert "slipstream_groups 3" in (await get(proxy.url + "/metrics"))[2]
    slow.append(1)
    assert "slipstream_groups 3" in (await get(proxy.url + "/metrics"))[2]
    monkeypatch.setattr(health, "KEPT_ANSWER_S", 0.0)
    assert "slipstream_groups" not in (await get(proxy.url + "/metrics"))[2]
    await runner.cleanup()
    monkeypatch.setattr(health, "KEPT_ANSWER_S", 300.0)
    assert "slipstream_groups" not in (await get(proxy.url + "/metrics"))[2]


async def test_only_reading_methods(start, fake):
    proxy = await start()
    async with aiohttp.ClientSession() as session:
        async with session.post(proxy.url + "/healthz") as reply:
            assert reply.status == 404
        async with session.head(proxy.url + "/healthz") as reply:
            assert reply.status == 200


def test_what_a_label_holds_is_no_line_of_its_own():
    own = '# TYPE a counter\na{x="\u2028# TYPE b gauge\x85# TYPE b gauge"} 5\n'
    other = '# TYPE b gauge\nb{y="\x85\u2028\x1c"} 1\n'
    assert _merged(own, other) == own + other


@pytest.mark.parametrize(
    ("other", "kept"),
    [
        ("", ""),
        ("# HELP a x\n# TYPE a counter\na 1\n", ""),
        ("# HELP b x\n# TYPE b counter\nb 1\n", "# HELP b x\n# TYPE b counter\nb 1\n"),
        ('# TYPE a counter\na 1\na{x="1"} 2\n# TYPE b gauge\nb 1\n', "# TYPE b gauge\nb 1\n"),
    ],
)
def test_families_that_both_have_are_the_data_planes(other, kept):
    own = "# HELP a ours\n# TYPE a counter\na 5\n"
    assert _merged(own, other) == own + kept
