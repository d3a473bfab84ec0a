"""Every test here sees an empty folder and none of the developer's own settings."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator

import pytest
from tests.support.fixtures import server

from slipstream.shared.log import NOISY_LOGGERS, OWN_LOGGERS

__all__ = ["server"]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("SLIPSTREAM_") or name in {"OPENAI_BASE_URL", "OPENAI_API_KEY"}:
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
