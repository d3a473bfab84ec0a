"""Plug-ins in a running control plane: the example by its own words, tables, faults that stay inside."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.browser import CHROMIUM
from tests.support.page_views import opened
from tests.support.plane import until
from tests.support.plugins import install, show

from slipstream import plugins

EXAMPLE = Path(__file__).parents[3] / "examples" / "nightly_report"


@pytest.fixture(autouse=True)
def fresh():
    yield
    plugins.installed.cache_clear()


@pytest.fixture
def example(monkeypatch, tmp_path):
    """As ``pip install examples/nightly_report`` leaves it."""
    points = tmp_path / "site" / "slipstream_nightly_report-1.0.dist-info"
    points.mkdir(parents=True)
    (points / "METADATA").write_text("Metadata-Version: 2.1\nName: slipstream-nightly-report\nVersion: 1.0\n")
    project = (EXAMPLE / "pyproject.toml").read_text()
    (point,) = (line for line in project.splitlines() if line.startswith("nightly_report"))
    (points / "entry_points.txt").write_text("[slipstream.plugins]\n" + point.replace('"', "") + "\n")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    show(monkeypatch, tmp_path / "site", "slipstream_nightly_report")


@pytest.fixture
async def hook():
    got = []

    async def take(request):
        got.append(await request.json())
        return web.Response()

    app = web.Application()
    app.router.add_post("/hook", take)
    server = TestServer(app)
    await server.start_server()
    yield str(server.make_url("/hook")), got
    await server.close()


async def _ended_run(plane, episode: str, value: float) -> None:
    await plane.call(episode)
    status, _ = await plane.ask("POST", f"/episodes/{episode}/rewards", {"value": value, "done": True})
    assert status == 200


async def test_the_example_sends_keeps_and_shows_a_report(example, make_plane, hook):
    url, got = hook
    plane = await make_plane(plugins={"nightly_report": {"webhook": url, "hour": 6}})
    report = plane.control.plugins.parts["nightly_report"]
    await _ended_run(plane, "e1", 1.0)
    await _ended_run(plane, "e2", 0.0)
    await until(lambda: plane.ask("GET", "/episodes/e2"))
    await report.send("2026-11-29")
    assert got == [{"day": "2026-11-29", "versions": [["tiny", 2, 0.5]]}]
    status, kept = await plane.ask("GET", "/nightly-report")
    assert (status, kept) == (200, got[0])
    status, view = await plane.ask("GET", "/plugins/nightly_report/views/last")
    assert view["blocks"][0]["rows"] == [["tiny", 2, 0.5]]
    metrics = await (await plane.client.get("/internal/metrics")).text()
    assert "slipstream_nightly_reports_total 1.0" in metrics
    status, spec = await plane.ask("GET", "/../openapi.json")
    assert "/slipstream/v1/nightly-report" in spec["paths"]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt install chromium)")
async def test_its_view_is_on_the_page(example, make_plane, hook, tmp_path):
    plane = await make_plane(plugins={"nightly_report": {"webhook": hook[0]}})
    await _ended_run(plane, "e1", 1.0)
    await until(lambda: plane.ask("GET", "/episodes/e1"))
    await plane.control.plugins.parts["nightly_report"].send("2026-11-29")
    async with opened(plane, tmp_path, "#/plugins") as (page, home):
        await page.holds("each night, the day's rewards go to a webhook")
        await page.go(home + "#/plugins/nightly_report%2Flast")
        await page.holds("Report of 2026-11-29")
        assert await page.js("[...document.querySelectorAll('main td')].map(d => d.textContent)") == ["tiny", "1", "1"]
        assert await page.accessibility() == []
        assert page.errors == []


async def test_what_it_kept_is_in_a_store_that_is_filled_anew(example, make_plane, hook):
    url, _ = hook
    plane = await make_plane(plugins={"nightly_report": {"webhook": url}})
    await plane.control.plugins.parts["nightly_report"].send("2026-11-29")
    await plane.stop()
    for file in plane.config.root.glob("slipstream.duckdb*"):
        file.unlink()
    plane.control = type(plane.control)(plane.config)
    await plane.start()
    found = await until(lambda: _day(plane))
    assert found == "2026-11-29"


async def _day(plane):
    return (await plane.ask("GET", "/nightly-report"))[1]["day"]


async def test_it_is_not_there_where_it_is_turned_off(example, make_plane):
    plane = await make_plane(plugins={"nightly_report": {"enabled": False}})
    assert (await plane.ask("GET", "/nightly-report"))[0] == 404
    status, listed = await plane.ask("GET", "/plugins")
    (found,) = (p for p in listed["plugins"] if p["name"] == "nightly_report")
    assert (status, found["enabled"], found["error"]) == (200, False, None)


INIT = """
    from slipstream.plugins import Plugin
    PLUGIN = Plugin(name="bad", text="fails", control="plug_bad.control:Bad")
"""
CONTROL = """
    from slipstream_proxy.control.api.http import Routes, reply
    from slipstream_proxy.control.api.plugins import ControlPlugin
    from slipstream_proxy.store.tables.extensions import Extension
    from slipstream_proxy.store.tables.schema import ExtensionTable

    def refuse(tx, mutation):
        raise ValueError("not mine")

    class Bad(ControlPlugin):
        extension = Extension(name="bad", tables={"notes": ExtensionTable({"id": "TEXT", "eid": "TEXT", "text": "TEXT"}, key="id")},
                              mutations={"bad": refuse})
        views = {"one": "One"}
        async def start(self):
            self.every(0.01, self.job)
        async def job(self):
            raise OSError("the job is broken")
        def committed(self, items):
            raise KeyError("committed")
"""


@pytest.fixture
def bad(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path / "site", "bad", {"__init__": INIT, "control": CONTROL})


async def test_what_fails_in_one_stays_inside_and_is_said(bad, make_plane):
    plane = await make_plane()
    await _ended_run(plane, "e1", 1.0)
    assert (await until(lambda: plane.ask("GET", "/episodes/e1")))[0] == 200
    status, _ = await plane.ask("GET", "/plugins/bad/views/one")
    assert status == 500
    assert await plane.deps.mutate("bad", {}) in (True, False)
    await _ended_run(plane, "e2", 1.0)
    assert (await plane.ask("GET", "/episodes/e2"))[1]["reward"] == 1.0
    _, told = await plane.ask("GET", "/status")
    (line,) = (line for line in told["funnel"]["lines"] if line["cause"] == "plugin_bad")
    assert line["severity"] == "slows" and line["count"] >= 3 and "[plugins.bad] enabled = false" in line["fix"]
    metrics = await (await plane.client.get("/internal/metrics")).text()
    assert 'slipstream_plugin_errors_total{plugin="bad"}' in metrics


async def test_rows_of_a_forgotten_run_go_from_its_tables(bad, make_plane):
    plane = await make_plane()
    await _ended_run(plane, "e1", 1.0)
    table = "t_plugin_bad_notes"
    with plane.deps.store.db.write() as tx:
        tx.insert(table, [("a", "-/e1", "secret words"), ("b", "-/e2", "others")])
    status, _ = await plane.ask("DELETE", "/episodes/e1")
    assert status in (200, 202, 204)
    with plane.deps.store.db.read() as tx:
        assert tx.all(f"SELECT id FROM {table}") == [("b",)]


async def test_a_taken_route_is_refused(monkeypatch, tmp_path, make_plane):
    taken = """
        from slipstream_proxy.control.api.http import Routes
        from slipstream_proxy.control.api.plugins import ControlPlugin
        ROUTES = Routes()
        @ROUTES.add("GET", "/status")
        async def get_status(ctx):
            "Mine."
        class Bad(ControlPlugin):
            routes = ROUTES
    """
    install(monkeypatch, tmp_path / "site", "bad", {"__init__": INIT, "control": taken})
    plane = await make_plane()
    status, told = await plane.ask("GET", "/status")
    assert status == 200
    (found,) = (p for p in told["plugins"] if p["name"] == "bad")
    assert found["error"] == "ConfigError: its route GET /slipstream/v1/status is taken"


async def test_tables_of_a_newer_plugin_are_left_alone(example, make_plane):
    plane = await make_plane()
    with plane.deps.store.db.write() as tx:
        tx.run("UPDATE t_meta SET value = '9' WHERE name = 'plugin/nightly_report'")
    await plane.again()
    _, listed = await plane.ask("GET", "/plugins")
    (found,) = (p for p in listed["plugins"] if p["name"] == "nightly_report")
    assert "its tables are version 9, and this plug-in nightly_report knows 1" in found["error"]


async def test_a_store_without_a_plugins_tables_forgets_too(bad, make_plane):
    """Another store of the same process may have them: what is forgotten is looked for in one's own."""
    plane = await make_plane(plugins={"bad": {"enabled": False}})
    await _ended_run(plane, "e1", 1.0)
    assert (await plane.ask("DELETE", "/episodes/e1"))[0] == 200
