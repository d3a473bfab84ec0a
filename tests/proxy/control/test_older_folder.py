"""A folder of an earlier commit, in which every feature was used, is read: store, spool, adapters and settings."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.support.older_folder import SECTIONS, facts, use_everything

from slipstream.config import load_config

FOLDERS = sorted((Path(__file__).parents[2] / "data" / "older").glob("*.tar.gz"))


@pytest.fixture(params=FOLDERS, ids=lambda path: path.name.partition(".")[0])
def older(request, tmp_path) -> dict[str, Any]:
    """Unpacked where ``make_plane`` looks. → What stood in it."""
    with tarfile.open(request.param) as tar:
        tar.extractall(tmp_path, filter="data")
    return json.loads((tmp_path / "facts.json").read_text())


async def test_all_of_it_is_there(older, make_plane):
    plane = await make_plane(**SECTIONS)
    assert await facts(plane) == older
    await plane.again()
    assert await facts(plane) == older


async def test_its_spool_alone_gives_the_same(older, make_plane, tmp_path):
    for file in (tmp_path / "data").glob("slipstream.duckdb*"):
        file.unlink()
    assert await facts(await make_plane(**SECTIONS)) == older


async def test_it_goes_on(older, make_plane):
    plane = await make_plane(**SECTIONS)
    await plane.call("new", done=True)
    await plane.seen("new")
    assert (await facts(plane))["calls"] == older["calls"] + 1
    assert (await plane.ask("DELETE", "/episodes/turns"))[0] in (200, 202, 204)
    assert "turns" not in (await facts(plane))["cases"]


async def test_what_makes_them_works_with_this_tree(make_plane):
    plane = await make_plane(**SECTIONS)
    await use_everything(plane)
    found = await facts(plane)
    assert found["steps"] == 1 and set(found["episodes"]) == {"imported", "mail-0", "mail-1", "turns"}


@pytest.mark.parametrize(
    "path", [p.with_name(p.name.replace(".tar.gz", ".toml")) for p in FOLDERS], ids=lambda p: p.stem
)
def test_all_settings_of_then_are_read(path):
    """Those that are gone since are left out with a word."""
    assert load_config(path).engine.max_loras == 4
