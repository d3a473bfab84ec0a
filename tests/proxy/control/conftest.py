from __future__ import annotations

import pytest
from tests.support.fake_engine import LoraEngine
from tests.support.plane import Plane, make_config


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
