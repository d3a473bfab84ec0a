from __future__ import annotations

import re

import pytest

from slipstream_proxy.control.api.app import ALL_ROUTES

API = "/slipstream/v1"


async def test_every_error_has_one_shape(plane):
    cases = [
        ("GET", "/slipstream/v1/nothing", 404, "path"),
        ("PATCH", API + "/status", 405, None),
        ("GET", API + "/episodes?limit=0", 422, "query.limit"),
        ("GET", API + "/episodes?tsak=a", 422, "query.tsak"),
        ("GET", API + "/episodes?task=a&task=b", 422, "query.task"),
        ("GET", API + "/episodes/none", 404, "path.episode"),
    ]
    for method, path, status, field in cases:
        r = await plane.client.request(method, path, headers=plane.as_())
        body = await r.json()
        assert (r.status, body["error"]["field"]) == (status, field), path
        assert set(body["error"]) == {"type", "message", "field", "fix"}
    assert (await plane.client.request("PATCH", API + "/status", headers=plane.as_())).headers["allow"] == "GET"


async def test_a_bad_body_names_the_field_and_the_nearest_name(plane):
    status, body = await plane.ask("POST", "/episodes/e/rewards", {"value": 1, "reson": "x"})
    assert (status, body["error"]["field"], body["error"]["fix"]) == (422, "body.reson", "did you mean reason?")
    status, body = await plane.ask("POST", "/episodes/e/rewards", {"value": True})
    assert (status, body["error"]["field"]) == (422, "body.value")
    r = await plane.client.post(
        API + "/episodes/e/rewards", data=b"{", headers={**plane.as_(), "content-type": "application/json"}
    )
    assert (r.status, (await r.json())["error"]["type"]) == (400, "bad_request")
    r = await plane.client.post(
        API + "/episodes/e/rewards", data=b"<a/>", headers={**plane.as_(), "content-type": "text/xml"}
    )
    assert r.status == 415


async def test_nobody_is_nobody(plane):
    assert (await plane.client.get(API + "/status")).status == 401
    assert (await plane.client.get(API + "/status", headers={"x-slipstream-auth": "{"})).status == 401
    assert (await plane.ask("GET", "/status", scopes=[]))[0] == 403
    assert (await plane.ask("POST", "/sql", {"query": "select 1"}, scopes=["inference", "judge", "trainer", "reward"]))[
        0
    ] == 403


@pytest.mark.parametrize("headers,key,status", [
    ({"host": "evil.example"}, "-", 403),
    ({"host": "evil.example"}, "k1", 200),
    ({"host": "localhost:8100"}, "-", 200),
    ({"host": "localhost.:8100"}, "-", 200),
    ({"host": "[::1]:8100"}, "-", 200),
    ({"host": "host.docker.internal:8100"}, "-", 200),
    ({"host": "Host.Containers.internal"}, "-", 200),
    ({"host": "docker.internal"}, "-", 403),
    ({"host": "127.0.0.1:1", "origin": "http://evil.example"}, "-", 403),
    ({"host": "127.0.0.1:1", "origin": "http://127.0.0.1:1"}, "-", 200),
    ({"host": "box.internal:8100", "origin": "http://other.internal"}, "k1", 403),
    ({"host": "127.0.0.1:1", "origin": "null"}, "-", 403),
    ({"host": "127.0.0.1:1", "origin": "https://slip.example", "sec-fetch-site": "same-origin"}, "k1", 200),
    ({"host": "127.0.0.1:1", "origin": "https://slip.example", "sec-fetch-site": "cross-site"}, "k1", 403),
    ({"host": "evil.example", "origin": "http://evil.example", "sec-fetch-site": "same-origin"}, "-", 403),
])  # fmt: skip
async def test_host_and_origin(plane, headers, key, status):
    r = await plane.client.get(API + "/status", headers={**plane.as_(key), **headers})
    assert r.status == status


async def test_the_pages_own_address_is_an_origin(make_plane):
    """A reverse proxy that puts another name into Host costs no write of the page."""
    plane = await make_plane(proxy={"public_url": "https://slip.example/page"})
    for origin, status in (("https://slip.example", 200), ("http://slip.example", 403), ("https://evil.example", 403)):
        r = await plane.client.get(API + "/status", headers={**plane.as_(), "host": "127.0.0.1:1", "origin": origin})
        assert r.status == status


async def test_without_a_store_it_stays_up_and_keeps_rewards(make_plane, tmp_path):
    plane = await make_plane(store={"url": "duckdb:////proc/none/store.duckdb"})
    status, body = await plane.ask("GET", "/episodes")
    assert (status, body["error"]["type"]) == (503, "unavailable")
    assert (await plane.ask("POST", "/episodes/e1/rewards", {"value": 1.0}))[1]["known"] is False
    r = await plane.client.post("/internal/pins", json=[{"key": "-", "episode": "e", "model": "tiny"}])
    assert await r.json() == [{"adapter": "tiny", "arm": "live", "chances": ""}]


async def test_a_body_that_reads_as_json_is_taken_whatever_its_type_says(plane):
    """curl -d calls every body a form."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    for route in (r for r in ALL_ROUTES if r.body):
        path = re.sub(r"\{[^}:]+(:[^}]*(\{[^}]*\})?[^}]*)?\}", "some-id", route.path)
        r = await plane.client.request(route.method, path, data=b"{}", headers={**plane.as_(), **form})
        assert r.status != 415, (route.path, await r.text())
    r = await plane.client.post(API + "/episodes/e/rewards", data=b'{"value": 1}', headers={**plane.as_(), **form})
    assert r.status == 200
    r = await plane.client.post(API + "/episodes/e/rewards", data=b"value=1", headers={**plane.as_(), **form})
    assert r.status == 415
    assert "JSON" in (await r.json())["error"]["fix"]
