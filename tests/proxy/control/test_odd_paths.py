"""Paths that a file system cannot follow are refused as what they are, and are no fault of the proxy's."""

from __future__ import annotations

import pytest
from tests.support.adapters import write_adapter


@pytest.mark.parametrize("name", ["loop", "tiny@1/\x00", "\x00", "a" * 5000, "x\ud800"])
async def test_a_folder_that_cannot_be_looked_at_is_refused(plane, name):
    folder = plane.config.adapters_dir
    write_adapter(folder / "tiny@1")
    (folder / "loop").symlink_to(folder / "loop")
    status, body = await plane.ask("POST", "/adapters", {"path": name})
    assert 400 <= status < 500, body
    assert body["error"]["message"]


@pytest.mark.parametrize("name", ["loop", "%00", "adapter_config.json%00"])
async def test_a_file_that_cannot_be_looked_at_is_not_there(plane, name):
    write_adapter(plane.config.adapters_dir / "tiny@1")
    (plane.config.adapters_dir / "tiny@1" / "loop").symlink_to(plane.config.adapters_dir / "tiny@1" / "loop")
    status, _ = await plane.ask("POST", "/adapters?wait=10", {"path": "tiny@1"})
    read, _ = await plane.ask("GET", f"/adapters/tiny@1/files/{name}")
    assert 400 <= read < 500 and status != 500
