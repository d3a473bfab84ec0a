"""Fixtures of a control plane, which tests of the core and of plug-ins share. A conftest imports those that it needs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.fake_engine import LoraEngine
from tests.support.plane import Plane, make_config
from tests.support.server import Server, serve

from slipstream.shared.log import NOISY_LOGGERS, OWN_LOGGERS


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


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each test sees an empty folder and none of the developer's own settings."""
    for name in list(os.environ):
        if name.startswith("SLIPSTREAM_") or name in {"OPENAI_BASE_URL", "OPENAI_API_KEY", "COLUMNS"}:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
    monkeypatch.setattr(sys, "path", sys.path[:])  # a command adds the folder for a user's own functions
    # what `up` imports takes seconds a time: test_doctor_imports.py looks at it by itself
    monkeypatch.setattr("slipstream.operate.doctor.doctor.check_imports", lambda *_: iter(()))
    root = logging.getLogger()
    handlers, levels = root.handlers[:], {n: logging.getLogger(n).level for n in ("", *OWN_LOGGERS, *NOISY_LOGGERS)}
    yield
    root.handlers[:] = handlers
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
