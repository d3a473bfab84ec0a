from __future__ import annotations

import io
import tarfile

import pytest
from tests.support.plane import Plane

from slipstream_proxy.store.tables.driver import StoreError


async def test_a_tar_file(plane: Plane):
    await plane.call("e1")
    reply = await plane.client.get(
        "/slipstream/v1/backup", headers={"x-slipstream-auth": '{"key": "-", "scopes": ["admin"]}'}
    )
    assert reply.status == 200 and reply.content_type == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(await reply.read())) as tar:
        assert "slipstream.duckdb" in tar.getnames()


@pytest.mark.parametrize("scope", ["inference", "reward", "grade", "judge", "trainer", "viewer"])
async def test_only_for_an_admin(plane: Plane, scope: str):
    auth = {"x-slipstream-auth": f'{{"key": "k", "scopes": ["{scope}"]}}'}
    assert (await plane.client.get("/slipstream/v1/backup", headers=auth)).status == 403


async def test_why_there_is_none(plane: Plane, monkeypatch: pytest.MonkeyPatch):
    def no_room(folder, but):
        raise StoreError("there is no pg_dump on the proxy's machine")

    monkeypatch.setattr(plane.deps.store.db, "copy_to", no_room)
    auth = {"x-slipstream-auth": '{"key": "-", "scopes": ["admin"]}'}
    reply = await plane.client.get("/slipstream/v1/backup", headers=auth)
    assert reply.status == 503 and "pg_dump" in (await reply.json())["error"]["message"]
    assert not list(plane.config.root.glob(".backup-*"))
