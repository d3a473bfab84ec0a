"""A key with the scope viewer reads everything and changes nothing: every route of the served document."""

from __future__ import annotations

import re

import pytest
from tests.support.plane import until

from slipstream_proxy.keys import Keys

ENDLESS = "x-endless"
OF_ADMINS = {"/slipstream/v1/backup"}
"""Reads that cost the proxy more than looking does."""
VIEWER = {"key": "v", "scopes": ["viewer"]}


@pytest.fixture
async def filled(make_plane):
    plane = await make_plane(groups={"size": 2})
    for n in range(2):
        await plane.call(f"e{n}", key="theirs", done=True)
        await plane.ask("POST", f"/episodes/e{n}/rewards", {"value": float(n)}, key="theirs")
        await until(lambda n=n: _done(plane, f"e{n}"))
    return plane


def filled_path(path: str) -> str:
    """With an id for each of its parts."""
    return re.sub(r"\{\w+\}", "e0", path.replace("{sha256}", "e" * 64))


async def _done(plane, name: str) -> bool:
    return (await plane.seen(name, key="theirs"))["state"] == "done"


async def _all_of(plane) -> list:
    """What the store shows of its episodes, events and adapters."""
    paths = ("/episodes", "/episodes/e0?key=theirs", "/training/events", "/adapters", "/success")
    return [(await plane.ask("GET", path))[1] for path in paths]


async def test_every_route_that_changes_something_refuses_a_viewer(filled):
    document = await (await filled.client.get("/slipstream/openapi.json", headers=filled.as_("v", ["viewer"]))).json()
    before, spooled = await _all_of(filled), filled.deps.ingester.stats.records
    refused = 0
    for path, methods in document["paths"].items():
        url = filled_path(path)
        for method in set(methods) - {"get"}:
            for body in (None, {}):
                reply = await filled.client.request(
                    method.upper(), url, json=body, headers=filled.as_("v", ["viewer"]), params={}
                )
                assert reply.status == 403, (method, path, await reply.text())
            refused += 1
    assert refused >= 20
    assert await _all_of(filled) == before
    assert filled.deps.ingester.stats.records == spooled


async def test_every_route_that_reads_answers_a_viewer(filled):
    document = await (await filled.client.get("/slipstream/openapi.json", headers=filled.as_("v", ["viewer"]))).json()
    for path, methods in document["paths"].items():
        if "get" not in methods or methods["get"].get(ENDLESS) or path in OF_ADMINS:
            continue
        asked = {
            p["name"]: p["schema"]["enum"][0]
            for p in methods["get"]["parameters"]
            if p["in"] == "query" and p.get("required")
        }
        reply = await filled.client.get(filled_path(path), params=asked, headers=filled.as_("v", ["viewer"]))
        assert reply.status in (200, 404), (path, await reply.text())


async def test_a_viewer_sees_what_belongs_to_others(filled):
    _, page = await filled.ask("GET", "/episodes", **VIEWER)
    assert [e["key"] for e in page["episodes"]] == ["theirs", "theirs"]
    assert (await filled.ask("GET", "/episodes/e1", **VIEWER))[1]["reward"] == 1.0
    assert "theirs" in (await filled.ask("GET", "/export", **VIEWER))[1]
    status, body = await filled.ask("GET", "/episodes/e1", key="v", scopes=["inference"])
    assert status == 404, body


def test_a_viewers_key_makes_no_calls(tmp_path):
    keys = Keys(tmp_path / "keys.json")
    _, secret = keys.add("wall", ["viewer"])
    key = keys.check(secret)
    assert key is not None and not any(
        key.may(s) for s in ("inference", "reward", "grade", "judge", "trainer", "admin")
    )
