"""An adapter's files, as engines without a shared folder get them."""

from __future__ import annotations

import hashlib

import pytest
from tests.support.plane import API, register


async def ask(plane, path: str, scopes=None):
    reply = await plane.client.get(f"{API}/adapters/{path}", headers=plane.as_(scopes=scopes))
    return reply.status, reply.headers, await reply.read()


async def test_an_engine_gets_the_files_and_their_hashes(plane):
    await register(plane, 1)
    folder = plane.config.adapters_dir / "tiny@1"
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        status, headers, body = await ask(plane, f"tiny@1/files/{file}", ["viewer"])
        assert status == 200 and body == (folder / file).read_bytes()
        assert headers["x-slipstream-sha256"] == hashlib.sha256(body).hexdigest()
        assert headers["x-slipstream-path"] == str(folder)
    (folder / "adapter_config.json").write_text("{}")
    status, headers, body = await ask(plane, "tiny@1/files/adapter_config.json")
    assert headers["x-slipstream-sha256"] == hashlib.sha256(b"{}").hexdigest(), "never the hash of what was there"


@pytest.mark.parametrize("scope", ["inference", "reward", "judge"])
async def test_agents_do_not_get_weights(plane, scope):
    await register(plane, 1)
    assert (await ask(plane, "tiny@1/files/adapter_config.json", [scope]))[0] == 403


async def test_nothing_else_is_served(plane, tmp_path):
    await register(plane, 1)
    (tmp_path / "adapter_config.json").write_text("secret")
    (plane.config.adapters_dir / "link").symlink_to(tmp_path)
    for path in ("tiny@1/files/notes.txt", "tiny@9/files/adapter_config.json", "link/files/adapter_config.json"):
        assert (await ask(plane, path))[0] == 404
    for path in (
        "../files/adapter_config.json",
        "%2e%2e/files/adapter_config.json",
        "..%2f..%2fx/files/adapter_config.json",
    ):
        assert (await ask(plane, path))[0] in (400, 404)
