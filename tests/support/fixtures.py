"""Fixtures of a control plane, which tests of the core and of plug-ins share. A conftest imports those that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.fake_engine import LoraEngine
from tests.support.plane import Plane, make_config
from tests.support.server import Server, serve


@pytest.fixture
async def engine():
    fake = await LoraEngine().start()
    yield fake
    await fake.stop()


@pytest.fixture
async def make_plane(tmp_path, engine):
    """``await make_plane(gate={...})``: a started control plane with these settings."""
    made: list[Plane] = []

    async def make(**sections) -> Plane:
        plane = await Plane(make_config(tmp_path, engine, **sections), engine).start()
        made.append(plane)
        return plane

    yield make
    for plane in made:
        await plane.stop()


@pytest.fixture
async def plane(make_plane):
    return await make_plane()


@pytest.fixture
def server() -> Iterator[Server]:
    with serve() as s:
        yield s


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.tiny import make_model

    return make_model(tmp_path_factory.mktemp("tiny"))
