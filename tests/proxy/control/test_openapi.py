from __future__ import annotations

import asyncio
import sys

import pytest
from tests.support.plane import API

from slipstream_proxy.control.api.app import ALL_ROUTES
from slipstream_proxy.control.api.openapi import document, path_of

RANGES = ("episodes", "export", "forget", "cases/{set}", "training/again", "groups/{group}/scores")
"""Routes whose fields may each be right and not go together, or say nothing together."""


def test_every_route_is_there_with_its_parameters_and_answers():
    found = document(ALL_ROUTES)
    for route in ALL_ROUTES:
        path, parameters = path_of(route)
        said = found["paths"][path][route.method.lower()]
        assert {p["name"] for p in said["parameters"] if p["in"] == "path"} == {p["name"] for p in parameters}
        assert {str(s) for s in route.responses} <= set(said["responses"])
        assert {"401", "403", "422", "503"} <= set(said["responses"])
        assert ("requestBody" in said) == (route.body is not None)


def test_no_reference_hangs():
    found = document(ALL_ROUTES)
    names = set(found["components"]["schemas"])

    def walk(value):
        if isinstance(value, dict):
            if "$ref" in value:
                assert value["$ref"].removeprefix("#/components/schemas/") in names
            for v in value.values():
                walk(v)
        elif isinstance(value, list):
            for v in value:
                walk(v)

    walk(found)
    assert f"{API}/episodes/{{episode}}/rewards" in found["paths"]


@pytest.mark.slow
@pytest.mark.parametrize("phases", ["fuzzing,stateful", "coverage"])
async def test_schemathesis_finds_nothing(plane, tmp_path, phases):
    """The running server against its own document: status codes, content types, schemas, refused nonsense, no 500."""
    await plane.call("e1")
    await plane.seen("e1")
    url = str(plane.client.make_url("/slipstream/openapi.json"))
    # two bounds of one filter may each be right and not go together, which a schema cannot say
    (tmp_path / "schemathesis.toml").write_text(
        "".join(
            f'[[operations]]\ninclude-path = "{API}/{path}"\n'
            'checks.positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "422", "5xx"]\n'
            for path in RANGES
        )
    )
    argv = [sys.executable, "-m", "schemathesis.cli", "--config-file", "schemathesis.toml", "run", url, "-H", f"x-slipstream-auth: {plane.as_()['x-slipstream-auth']}",
            "--exclude-path-regex", "events/stream$", "--phases", phases, "--max-examples", "4", "--generation-deterministic", "--request-timeout", "60", "--no-color"]  # fmt: skip
    p = await asyncio.create_subprocess_exec(
        *argv, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await asyncio.wait_for(p.communicate(), 240)
    assert p.returncode == 0, out.decode()[-6000:]
